"""RabbitMQ as one node with its own Erlang port mapper, so that nothing outlives the run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.servers.packages import ensure_command
from bench.servers.process import Launch, ServerError, free_ports


class RabbitServer:
    """RabbitMQ with default settings."""

    name = "RabbitMQ"
    protocol = "amqp"
    version = ""

    def obtain(self) -> None:
        ensure_command("rabbitmq-server", "rabbitmq-server")
        # Called by root, the command on the path becomes the rabbitmq user; the script behind it does not.
        script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        epmd = shutil.which("epmd")
        if not script.exists() or epmd is None:
            raise ServerError("rabbitmq-server is not laid out as Debian's package is")
        self._script, self._epmd = script, epmd
        query = ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"]
        told = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout
        self.version = f"{told.partition('-')[0]}, quorum queue"

    def prepare(self, folder: Path) -> Launch:
        folder.mkdir(parents=True)
        broker, distribution, mapper = free_ports(3)
        config = folder / "rabbitmq.conf"
        config.write_text(f"listeners.tcp.1 = 127.0.0.1:{broker}\n")
        env = {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{broker}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(folder / "feature_flags"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "config"),
        }
        shell = f"{self._epmd} -address 127.0.0.1 -port {mapper} & exec {self._script}"
        return Launch(address=f"127.0.0.1:{broker}", command=("sh", "-c", shell), folder=folder, env=env)
