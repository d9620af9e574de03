"""Delayed messages: after a delay, at a time, replaced, cancelled, and on a schedule."""

import os
import threading
from datetime import UTC, datetime, timedelta

import penstock

client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))
last = threading.Event()


@client.subscribe("reminders", group="reminders", from_beginning=True)
def remind(message: penstock.Message) -> None:
    print(message.value.decode(), flush=True)
    if message.value == b"good night":
        last.set()


client.send("reminders", "tea", key="me", delay="2s")
client.send("reminders", "call the doctor", key="me", delay="2s", timer_id="doctor")
client.send("reminders", "dentist at three", key="me", delay="2s", timer_id="dentist")
client.send("reminders", "drink some water", key="me", schedule="cron 0 9 * * 1-5 Europe/Zurich", timer_id="water")
client.reschedule("reminders", "dentist", "dentist at four", key="me", delay="3s")
client.cancel("reminders", "doctor", key="me")
client.cancel("reminders", "water", key="me")
client.send("reminders", "good night", key="me", deliver_at=datetime.now(UTC) + timedelta(seconds=4))
client.start()
last.wait()
client.close()
