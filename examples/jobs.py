"""Jobs that depend on other jobs: each starts as soon as those are done, without a timetable."""

import os
import threading
from collections import defaultdict

import penstock

client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))
ended = threading.Event()


def job(name: str, *needs: str) -> None:
    done = defaultdict(set)

    @client.subscribe("jobs-done", group=f"job-{name}", from_beginning=True)
    def start(message: penstock.Message) -> None:
        night, other = message.key.decode(), message.value.decode()
        done[night].add(other)
        if other in needs and done[night].issuperset(needs):
            print(f"{night}: {name} starts, after {' and '.join(needs)}\n", end="", flush=True)
            client.send("jobs-done", name, key=night)
        if other == name == "report":
            ended.set()


job("clean", "extract")
job("count", "extract")
job("report", "clean", "count")

client.send("jobs-done", "extract", key="monday")  # the first job depends on nothing
client.start()
ended.wait()
client.close()
