"""A server with SGLang's recorded endpoints, which refuses every other request.

It is no SGLang, of which nothing runs on a CPU. What is real: HTTP; the process group, made as
SGLang makes it; the weights, which a model of transformers loads by their names; the tokens and
log-probs, which that model draws.

    python sglang_like_server.py PORT MODEL TOKEN VERSION
"""

import hashlib
import json
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORD = json.loads(Path(__file__).with_name("engine_contract.json").read_text("utf-8"))
VERSIONS = tuple(pin.split("==")[1] for pin in RECORD if pin.startswith("sglang=="))


@dataclass
class SpokenSglang:
    """Judges each request by the record of a version, and answers it."""

    release: str
    model: Any = None
    """Of transformers; None answers with one token over and over, and takes no weights."""
    paths: list[str] = field(default_factory=list)
    weight_version: str = "default"
    is_paused: bool = False
    flushed: int = 0
    stale: bool = False
    """Keys and values of older weights lie in the cache."""
    groups: dict[str, Any] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    holds: bool = False
    told: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return status and answer."""
        self.paths.append(path)
        if path == "/weights":  # of this stand-in alone
            return 200, self.sums()
        if why := self.misfit(path, body):
            return 422, {"error": why}
        method = path.strip("/")
        return 200, getattr(self, method)(body)

    def misfit(self, path: str, body: dict[str, Any]) -> str:
        """Say what of a request the server would not understand."""
        endpoints = RECORD[f"sglang=={self.release}"]
        endpoint = endpoints["endpoints"].get(path)
        if endpoint is None or "POST" not in endpoint["methods"]:
            return f"there is no POST {path}"
        fields = endpoint["fields"]
        if unknown := body.keys() - fields.keys():
            return f"{path} has no {unknown}"
        if missing := {name for name, given in fields.items() if given is None} - body.keys():
            return f"{path} lacks {missing}"
        unknown = body.get("sampling_params", {}).keys() - set(endpoints["sampling_params"])
        return f"there is no sampling by {unknown}" if unknown else ""

    def pause_generation(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["mode"] == "retract"
        self.is_paused = True
        return {"status": "ok"}

    def continue_generation(self, _: dict[str, Any]) -> dict[str, Any]:
        assert not self.stale, "old keys and values would be read"
        self.is_paused = False
        return {"status": "ok"}

    def abort_request(self, body: dict[str, Any]) -> dict[str, Any]:
        self.aborted.add(body["rid"])
        self.told.set()
        return {}

    def init_weights_update_group(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.model is None:
            return {"success": True, "message": ""}
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        name, rank = body["group_name"], body["rank_offset"]
        where = f"tcp://{body['master_address']}:{body['master_port']}"
        try:
            store, rank, size = next(dist.rendezvous(where, rank, body["world_size"]))
            group, _ = c10d._new_process_group_helper(
                size,
                rank,
                [],
                dist.Backend(body["backend"]),
                dist.PrefixStore(name, store),
                group_name=name,
                timeout=c10d.default_pg_timeout,
            )
        except (RuntimeError, ValueError) as error:
            return {"success": False, "message": str(error)}
        c10d._world.pg_group_ranks[group] = {each: each for each in range(size)}
        self.groups[name] = group
        return {"success": True, "message": ""}

    def destroy_weights_update_group(self, body: dict[str, Any]) -> dict[str, Any]:
        self.groups.pop(body["group_name"], None)
        return {"success": True, "message": ""}

    def update_weights_from_distributed(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self.is_paused, "somebody draws while weights come"
        if self.model is not None:
            if body["group_name"] not in self.groups:
                return {"success": False, "message": f"no group {body['group_name']}"}
            self.load(body)
        self.stale = not body["flush_cache"]
        self.flushed += body["flush_cache"]
        self.weight_version = body.get("weight_version", self.weight_version)
        return {"success": True, "message": ""}

    def load(self, body: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist

        found = {}
        for name, dtype, shape in zip(body["names"], body["dtypes"], body["shapes"], strict=True):
            found[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            dist.broadcast(found[name], src=0, group=self.groups[body["group_name"]])
        unknown = self.model.load_state_dict(found, strict=False).unexpected_keys
        assert not unknown, unknown

    def sums(self) -> dict[str, str]:
        return {
            name: hashlib.sha256(tensor.float().numpy().tobytes()).hexdigest()
            for name, tensor in self.model.state_dict().items()
        }

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        name, params = body["rid"], body["sampling_params"]
        assert not self.is_paused
        assert body["return_logprob"]
        while self.holds and name not in self.aborted:
            self.told.wait(0.05)
        drawn = self.drawn(body["input_ids"], params, name)
        ends = bool(drawn) and drawn[-1][1] in params["stop_token_ids"]
        ending = "abort" if name in self.aborted else "stop" if ends else "length"
        return {
            "text": "",
            "output_ids": [token for _, token, _ in drawn],
            "meta_info": {
                "id": name,
                "finish_reason": {"type": ending},
                "weight_version": self.weight_version,
                "output_token_logprobs": drawn,
            },
        }

    def drawn(self, prompt: list[int], params: dict[str, Any], name: str) -> list[Any]:
        most, found, token = params["max_new_tokens"], list[Any](), -1
        if self.model is None:
            return [[-0.5, 40, None]] * (1 if self.holds else most)
        import torch

        given, heat = torch.Generator().manual_seed(params.get("sampling_seed", 0)), 1.0
        heat = params["temperature"] or heat
        while len(found) < most and token not in params["stop_token_ids"]:
            if name in self.aborted:
                break
            ids = torch.tensor([[*prompt, *(each[1] for each in found)]])
            with self.lock, torch.no_grad():
                logprobs_V = (self.model(ids).logits[0, -1] / heat).log_softmax(0)
            token = int(logprobs_V.argmax())
            if params["temperature"]:
                token = int(torch.multinomial(logprobs_V.exp(), 1, generator=given))
            found.append([float(logprobs_V[token]), token, None])
        return found


def main() -> None:
    """Serve until the process ends."""
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM
    from vllm_like_server import listening

    port, folder, token, release = sys.argv[1:]
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = AutoModelForCausalLM.from_pretrained(folder)
    for tensor in model.state_dict().values():
        tensor.zero_()
    engine = SpokenSglang(release=release, model=model.eval())
    with listening(engine, port=int(port), token=token):
        threading.Event().wait()


if __name__ == "__main__":
    main()
