"""A tool as verl's users write them, without its library."""

from types import SimpleNamespace
from typing import Any

SCHEMA = {
    "type": "function",
    "function": {
        "name": "check_answer",
        "description": "Check an answer.",
        "parameters": {
            "type": "object",
            "properties": {"answer": {"type": "string", "description": "The answer."}},
            "required": ["answer"],
        },
    },
}


class CheckAnswer:
    """Scores answers against the one of the row."""

    def __init__(self, config: dict[str, Any], tool_schema: dict[str, Any] | None) -> None:
        self.config, self.tool_schema = config, tool_schema or SCHEMA
        self.name = "check_answer"
        self.made: dict[str, Any] = {}

    def get_openai_tool_schema(self) -> dict[str, Any]:
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, None]:
        made = instance_id or "one"
        self.made[made] = {"truth": kwargs["create_kwargs"].get("ground_truth"), "right": 0.0}
        return made, None

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **_: Any
    ) -> tuple[SimpleNamespace, float, dict[str, Any]]:
        found = self.made[instance_id]
        is_right = parameters["answer"] == found["truth"]
        found["right"] = float(is_right)
        penalty = 0.0 if is_right else self.config["penalty"]
        return SimpleNamespace(text=f"right: {is_right}"), penalty, {}

    async def calc_reward(self, instance_id: str, **_: Any) -> float:
        return float(self.made[instance_id]["right"])

    async def release(self, instance_id: str, **_: Any) -> None:
        del self.made[instance_id]
