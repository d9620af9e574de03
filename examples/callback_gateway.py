"""A slow outside call: the bank answers some time later, at a gateway that knows nothing of who has asked."""

import os
import threading

import penstock

client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))


@client.subscribe("payments", group="bank-calls", from_beginning=True)
def call_the_bank(message: penstock.Message) -> None:
    print(f"the bank is asked for {message.value.decode()}", flush=True)
    # The token goes out with the call. The bank takes its time; nobody here waits for it.
    threading.Timer(0.5, gateway, [message.reply_token, "paid"]).start()


def gateway(token: str, result: str) -> None:  # as an HTTP handler would be called by the bank
    print(f"the gateway is called: {result}", flush=True)
    client.reply(token, result)


client.start()
answer = client.request("payments", "order 42, 10 EUR", timeout="1m")
print(f"order 42 is {answer.value.decode()}")
client.close()
