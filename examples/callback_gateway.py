"""Call a slow external service: the bank answers later, at a gateway that does not know who asked."""

import os
import threading

import penstock

client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))


@client.subscribe("payments", group="bank-calls", from_beginning=True)
def call_the_bank(message: penstock.Message) -> None:
    print(f"the bank is asked for {message.value.decode()}", flush=True)
    # Pass the token to the bank with the call. Nothing here waits for the answer.
    threading.Timer(0.5, gateway, [message.reply_token, "paid"]).start()


def gateway(token: str, result: str) -> None:  # the bank would call this over HTTP
    print(f"the gateway is called: {result}", flush=True)
    client.reply(token, result)


client.start()
answer = client.request("payments", "order 42, 10 EUR", timeout="1m")
print(f"order 42 is {answer.value.decode()}")
client.close()
