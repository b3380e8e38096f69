"""Who holds what in a run, and how the weights travel. Each answer is made once, when asked for."""

from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.memory.plan import RankBytes
from mindrl.models.decoder import Head
from mindrl.models.description import ModelDescription
from mindrl.models.sharding import Sharding
from mindrl.platform.garbage import no_collection
from mindrl.preflight.run_plan import RunPlan, unordered_plan
from mindrl.preflight.shipped import planned_description, sizes_path
from mindrl.resharding.plan import ReshardPlan, plan_reshard, slices_for_bucket
from mindrl.resharding.rank_map import choose_orders
from mindrl.resharding.slices import Slices
from mindrl.rollout.planning import rollout_sharding
from mindrl.training.planning import ExpertStorage, legal_orders, training_sharding


@dataclass(frozen=True, kw_only=True)
class RunShardings:
    """The models of a run in its layouts; what travels takes seconds for large ones."""

    plan: RunPlan
    unordered: "RunShardings | None" = None
    """The same with the ranks in the engine's own order, where this one was made from it: the
    rollout and what travels are the same."""

    @cached_property
    def training(self) -> dict[Role, Sharding]:
        """Who holds which part of each role's model; roles that are alike share the answer."""
        config, dtype = self.plan.config, self.plan.train_dtype

        @cache
        def sharding(
            model: ModelDescription, layout: TrainLayout, experts: ExpertStorage, head: Head
        ) -> Sharding:
            return training_sharding(model, layout, dtype=dtype, experts=experts, head=head)

        found: dict[Role, Sharding] = {}
        for role, layout in self.plan.layouts.items():
            grouped = config.learning(role).moe_grouped_gemm
            head: Head = "value" if role in ("critic", "reward") else "vocabulary"
            experts: ExpertStorage = "grouped" if grouped else "sequential"
            found[role] = sharding(self.plan.models[role], layout, experts, head)
        return found

    @cached_property
    def rollout(self) -> Sharding:
        """Who needs the actor's weights for rollout."""
        if self.unordered is not None:
            return self.unordered.rollout
        dtype = self.plan.config.generate_config.dtype
        return rollout_sharding(self.plan.models["actor"], self.plan.rollout, dtype=dtype)

    @cached_property
    def slices(self) -> Slices:
        """What travels from the actor's layout to the rollout's."""
        if self.unordered is not None:
            return self.unordered.slices
        with no_collection():
            return slices_for_bucket(self.training["actor"], self.rollout, self.plan.bucket_bytes)

    @cached_property
    def reshard(self) -> ReshardPlan:
        """How it travels, which takes most of the time for large models."""
        with no_collection():
            return plan_reshard(
                self.training["actor"],
                self.rollout,
                self.plan.topology,
                bucket_bytes=self.plan.bucket_bytes,
                slices=self.slices,
            )

    @cached_property
    def staging(self) -> RankBytes:
        """Largest bytes of messages that each rank has in flight then."""
        return self.reshard.peak_staging

    @property
    def most_staging(self) -> RankBytes:
        """Bound on the same, which needs no plan of the reshard."""
        return np.full(self.plan.config.world_size, self.plan.bucket_bytes, dtype=np.int64)

    @cached_property
    def ordered(self) -> "RunShardings":
        """The same with the ranks in the order that `generate_config.rank_map` asks for.

        A role with the actor's sizes takes its order too: then they share their process groups.
        """
        plan = self.plan
        if plan.config.generate_config.rank_map == "default":
            return self
        own = plan.layouts["actor"]
        with no_collection():
            source, target = self.training["actor"], self.rollout
            best = choose_orders(
                own, source, target, self.slices, plan.topology, legal_orders
            ).layout
        if best == own:
            return self
        layouts = {role: best if each == own else each for role, each in plan.layouts.items()}
        return RunShardings(plan=replace(plan, layouts=layouts), unordered=self)


def unordered_shardings(config: RunConfig) -> RunShardings:
    """Read the sizes of the models of a run that is planned, with the ranks in the engine's order.

    Args:
        config: Without findings.

    Raises:
        ModelError: A model folder does not hold a known model.
    """
    described = cache(planned_description)
    models = {role: described(sizes_path(config, role)) for role in config.roles}
    return RunShardings(plan=unordered_plan(config, models))


def planned_shardings(config: RunConfig) -> RunShardings:
    """Read the sizes of the models of a run that is planned, with the ranks in its order.

    Raises:
        ModelError: A model folder does not hold a known model.
    """
    return unordered_shardings(config).ordered
