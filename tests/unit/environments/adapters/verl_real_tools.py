"""A tool of verl's own base class."""

from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse


class CheckAnswer(BaseTool):
    """Scores answers against the one of the row."""

    async def create(
        self, instance_id: str | None = None, **kwargs: Any
    ) -> tuple[str, ToolResponse]:
        made, response = await super().create(instance_id)
        self.truth, self.right = {made: kwargs["create_kwargs"]["ground_truth"]}, {made: 0.0}
        return made, response

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **_: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        is_right = parameters["answer"] == self.truth[instance_id]
        self.right[instance_id] = float(is_right)
        penalty = 0.0 if is_right else self.config["penalty"]
        return ToolResponse(text=f"right: {is_right}"), penalty, {}

    async def calc_reward(self, instance_id: str, **_: Any) -> float:
        return self.right[instance_id]
