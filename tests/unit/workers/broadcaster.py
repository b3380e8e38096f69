"""A single training rank that sends a model's weights as whole tensors to a server.

Started by test_broadcast_links.py as `python broadcaster.py URL FOLDER`; prints JSON.
"""

import hashlib
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from mindrl.models.description import read_description
from mindrl.models.sharding import Sharding, dtype_of, full_sharding
from mindrl.platform.device import PLATFORMS
from mindrl.platform.rendezvous import Seat, call_off, join_process_group, link_name, listen
from mindrl.resharding.gathering import Broadcast
from mindrl.resharding.plan import Topology
from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.http.sglang_server import SglangServer, WholeTensor
from mindrl.workers.broadcast_links import BroadcastEnd
from mindrl.workers.weight_links import WeightLinks

CPU = PLATFORMS["cpu"]


@dataclass
class Loaded:
    """What the transfer asks of a model that trains."""

    sharding: Sharding
    tensors: dict[str, Tensor]
    device_type: str = "cpu"

    adapters = None

    def local_tensors(self) -> dict[str, Tensor]:
        return self.tensors


def main() -> None:
    """Send two versions, have a meeting called off, and send again."""
    url, folder = sys.argv[1:]
    with listen("127.0.0.1") as listener:
        address = listener.getsockname()[:2]
        alone, limit = Seat(rank=0, world_size=1, local_device=0), timedelta(seconds=60)
        join_process_group(CPU, alone, address, timeout=limit, listener=listener)
    described = read_description(folder)
    whole = full_sharding(described, world_size=1, holders=[0], dtype="float32")
    # Rounds of few tensors, in an order of their own.
    broadcast = Broadcast.of(whole, described, "float32", Topology(ranks_per_node=1), 1 << 17)
    tensors = load_file(Path(folder) / "model.safetensors")
    model = cast("Any", Loaded(whole, tensors))
    end = BroadcastEnd(
        platform=CPU, broadcast=broadcast, timeout_seconds=60, server_ranks=1, verify="always"
    )
    links = WeightLinks(end, model)
    client = ServerClient(url=url, token="of-this-test", name="replica 0")
    server = server_at(client, broadcast)

    def link(generation: int) -> str | None:
        said: list[str | None] = []
        opening = threading.Thread(target=lambda: said.append(links.open(0, generation)))
        opening.start()
        server.join_link(links.address, 0, generation)
        opening.join()
        return said[0]

    def publish(version: int) -> bool:
        receiving = threading.Thread(target=server.receive_weights, args=(version,))
        receiving.start()
        lost = links.send([0])
        receiving.join()
        found = json.loads(client.post("/weights", {}, seconds=60))
        sums = {name: digest(tensor) for name, tensor in tensors.items()}
        return not lost and all(found[name] == each for name, each in sums.items())

    while not client.is_up():
        time.sleep(0.1)
    linked = [link(0)]
    arrived = [publish(0)]
    for tensor in tensors.values():
        tensor.mul_(1.25)
    arrived.append(publish(1))
    sent = links.flush_metrics()["bytes/reshard_sent"]
    name = link_name(0, 7)
    calling = threading.Timer(1.0, call_off, (links.address, name, "it is gone", limit))
    calling.start()
    linked += [links.open(0, 7), link(8)]
    arrived.append(publish(2))
    nbytes = sum(each.nbytes for each in server.tensors)
    found = {"linked": linked, "arrived": arrived, "sent": sent, "whole": nbytes}
    print(json.dumps(found), flush=True)
    links.drop(0)
    dist.destroy_process_group()
    # A usual exit waits for the group that was called off, up to its time limit.
    os._exit(0)


def server_at(client: ServerClient, broadcast: Broadcast) -> SglangServer:
    """Return a server that is asked with a client, and takes all tensors."""
    table = broadcast.whole.table(0)
    return SglangServer(
        client=client,
        control_seconds=60,
        ranks=1,
        collectives=CPU.collective_backend,
        tensors=[
            WholeTensor(name, dtype_of(table[name], "float32"), table[name].shape)
            for name in broadcast.order
        ],
        bucket_bytes=1 << 18,
    )


def digest(tensor: torch.Tensor) -> str:
    """Return the sum of a tensor's bytes, as the server says it."""
    return hashlib.sha256(tensor.float().numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    main()
