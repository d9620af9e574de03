"""What `penstock serve` says once it can be used."""

from __future__ import annotations


def welcome(kafka: str, http: str, data: str) -> str:
    """Where the broker listens, where it keeps its data, and what to try first."""
    at = "" if kafka == "127.0.0.1:9092" else f" -b {kafka}"
    return f"""\
Penstock is ready.
  Kafka clients   {kafka}
  health, metrics http://{http}
  data            {data}

Try, in another terminal:
  penstock topic create orders --partitions 3{at}
  penstock send orders "hello"{at}
  penstock tail orders --follow{at}
or with any Kafka client, such as:
  kcat -b {kafka} -t orders -C
Ctrl-C stops the broker."""
