"""Types of the sections that `mindrl.train` takes; the stub next to this file lists their keys."""

from typing import Any, TypedDict

from mindrl.config.load import field_names

SectionArguments = TypedDict("SectionArguments", dict.fromkeys(field_names(()), Any), total=False)
