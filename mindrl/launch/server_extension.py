"""Extension of a vLLM server that receives the weights of a run. Imported in its workers."""

import json
from typing import Any

from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig
from mindrl.errors import MindrlError
from mindrl.launch.link_routes import link_routes
from mindrl.models.description import read_description
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.run_shardings import RunPlan, RunShardings
from mindrl.rollout.vllm.shards import EngineShards
from mindrl.workers.weight_links import LinkEnd, ReceivingEnd


class InwardWeights:
    """Two further methods of vLLM's worker; vLLM adds this class to its bases.

    Their arguments are strings, because vLLM passes only these; they return the failure, or an
    empty string, so that a server survives a failed transfer.
    """

    rank: int
    device: Any
    vllm_config: Any
    mindrl_end: ReceivingEnd | None = None

    def mindrl_join(
        self, configuration: str, host: str, port: str, replica: str, generation: str
    ) -> str:
        """Join the training ranks of the run with this JSON configuration. A collective."""
        if self.mindrl_end is not None:
            self.mindrl_end.leave()
        try:
            self.mindrl_end = self._mindrl_end(load_run_config(json.loads(configuration)))
            self.mindrl_end.join((host, int(port)), int(replica), int(generation))
        except MindrlError as error:
            return str(error)
        return ""

    def mindrl_receive(self) -> str:
        """Receive the weights that the training ranks send. A collective with them."""
        if self.mindrl_end is None:
            return "this server has not joined a link"
        shards = EngineShards(self)
        try:
            self.mindrl_end.receive(shards)
        except MindrlError as error:
            return str(error)
        shards.finish()
        return ""

    def _mindrl_end(self, config: RunConfig) -> ReceivingEnd:
        """Plan the link from the configuration, for the model in the server's own folder."""
        plan = RunPlan(
            config=config,
            models={"actor": read_description(self.vllm_config.model_config.model)},
            layouts={"actor": config.layout("actor")},
            rollout=config.rollout_layout,
        )
        kinds = (each for each in PLATFORMS.values() if each.device_type == self.device.type)
        rank = config.world_size + self.rank
        routes = link_routes(RunShardings(plan=plan))
        return ReceivingEnd(LinkEnd(platform=next(kinds), routes=routes, rank=rank))
