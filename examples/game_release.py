"""Release a game: the forum hears of it at once, app and web site switch at the hour of the release."""

import os
import sys
import threading
from datetime import UTC, datetime, timedelta

import penstock

WAIT_S = float(sys.argv[1]) if len(sys.argv) > 1 else 60
client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))
heard = threading.Semaphore(0)


def listener(name: str, tags: str, action: str) -> None:
    @client.subscribe("versions", group=name, tags=tags, from_beginning=True)
    def listen(message: penstock.Message) -> None:
        print(f"{name} {action} {message.value.decode()}\n", end="", flush=True)
        heard.release()


listener("forum", "announced", "warms up for")
listener("packages", "tested", "builds")
listener("app", "released", "updates to")
listener("web", "released", "updates to")

release = datetime.now(UTC) + timedelta(seconds=WAIT_S)
client.send("versions", "dragons 2.0", key="dragons", tags=["released"], deliver_at=release, timer_id="dragons 2.0")
client.send("versions", "dragons 2.0", key="dragons", tags=["announced"])
client.send("versions", "dragons 2.0", key="dragons", tags=["tested"])
client.start()
for _ in range(4):
    heard.acquire()
client.close()
