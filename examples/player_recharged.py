"""A player recharges and becomes a VIP: three independent systems send gifts, an attendant and a discount."""

import os
import threading
from collections import Counter

import penstock

client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))
totals = Counter()
heard = threading.Semaphore(0)


@client.subscribe("players", group="vip", tags="recharged", from_beginning=True)
def judge(message: penstock.Message) -> None:
    player = message.key.decode()
    totals[player] += int(message.value)
    print(f"{player} has recharged {totals[player]}", flush=True)
    if totals[player] >= 1000:
        client.send("players", "VIP", key=player, tags=["vip"], biz_id=f"vip-{player}")


for system, action in (("gifts", "sends a dragon"), ("service", "names an attendant"), ("shop", "gives a discount")):

    @client.subscribe("players", group=system, tags="vip", from_beginning=True)
    def reward(message: penstock.Message, system: str = system, action: str = action) -> None:
        print(f"{system} {action} to {message.key.decode()}\n", end="", flush=True)
        heard.release()


for amount in ("300", "800"):
    client.send("players", amount, key="alice", tags=["recharged"])
client.start()
for _ in range(3):
    heard.acquire()
client.close()
