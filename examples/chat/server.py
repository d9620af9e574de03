"""A chat server for a company that runs MySQL and nothing else. README.md says how to start it; `help` what to type."""

import contextlib
import os
import re
import socketserver
import sys

from confluent_kafka import KafkaException
from delivery import Delivery, Session
from store import PARTITIONS, TOPIC, Store

import penstock
from penstock.admin import Cluster, NewTopic

HELP = "join ROOM, leave ROOM, say ROOM TEXT, remind ROOM 30s TEXT, history ROOM, bye"
NAME = re.compile(r"[\w-]{1,40}")


class Connection(socketserver.StreamRequestHandler):
    """Who has connected: says a name first, then one command a line. Answers begin with a star."""

    server: "ChatServer"

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the member has gone
            self._serve()

    def _serve(self) -> None:
        self._tell("what is your name?")
        name = self._line()
        if not NAME.fullmatch(name):
            self._tell("a name has letters, digits and -")
            return
        try:
            with self.server.delivery.session(name, self.connection) as session:
                while (line := self._line()) != "bye":
                    session.say(f"* {self._obey(session, line)}")
        except KafkaException as error:
            self._tell(f"try again later: {error}")

    def _obey(self, session: Session, line: str) -> str:
        store = self.server.store
        match line.split(maxsplit=2):
            case ["join", room] if NAME.fullmatch(room):
                store.join(session.name, room)
                session.rooms.add(room)
                return f"you are in {room}"
            case ["leave", room]:
                store.leave(session.name, room)
                session.rooms.discard(room)
                return f"you have left {room}"
            case ["say", room, text] if room in session.rooms:
                return self._send(room, f"{session.name}: {text}")
            case ["remind", room, rest] if room in session.rooms and " " in rest:
                delay, text = rest.split(maxsplit=1)
                return self._send(room, f"{session.name} wanted to be reminded: {text}", delay)
            case ["history", room] if room in session.rooms:
                return "\r\n".join([f"the last messages of {room}", *map(str, store.history(room))])
            case ["say" | "remind" | "history", room, *_] if room not in session.rooms:
                return f"you are not in {room}"
            case _:
                return HELP

    def _send(self, room: str, text: str, delay: str | None = None) -> str:
        """The room is the key, so its messages stay in order, and the business id, so SQL finds them."""
        try:
            sent = self.server.client.send(TOPIC, text, key=room, biz_id=room, delay=delay)
        except penstock.SendError as error:
            return f"not sent: {error}"
        except penstock.InvalidInputError as error:
            return str(error)
        return "sent" if sent.offset is None else f"sent as {room} {sent.offset + 1}"

    def _line(self) -> str:
        line = self.rfile.readline(8_000)
        return line.decode(errors="replace").strip() if line else "bye"

    def _tell(self, text: str) -> None:
        self.wfile.write(f"* {text}\r\n".encode())


class ChatServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], bootstrap: str, database: str) -> None:
        super().__init__(address, Connection)
        self.store = Store(database)
        self.client = penstock.Client(bootstrap, client_id="chat")
        created = Cluster(bootstrap).topics.create([NewTopic(name=TOPIC, partitions=PARTITIONS)])
        for error in created.errors.values():
            if error.code != "TOPIC_ALREADY_EXISTS":
                raise error
        self.delivery = Delivery(self.client, bootstrap, self.store)


if __name__ == "__main__":
    host, _, port = os.environ.get("LISTEN", "localhost:7000").rpartition(":")
    with ChatServer((host, int(port)), os.environ.get("BOOTSTRAP", "localhost:9092"), sys.argv[1]) as server:
        print(f"chat server at {host}:{server.server_address[1]}", flush=True)
        server.serve_forever()
