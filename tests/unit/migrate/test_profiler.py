"""Import of the profiler keys of a MindSpeed-RL file."""

from mindspeed_rl_files import imported, of

INTEGRATED = "profiler_config.integrated"


def test_a_profile_of_theirs_is_one_of_ours() -> None:
    given = {
        "profile": True,
        "stage": "actor_update",
        "profile_ranks": [0, 1],
        "profile_step_start": 2,
        "profile_step_end": 4,
        "profile_level": "level1",
        "profile_with_memory": True,
        "profile_export_type": "db",
        "profile_save_path": "",
    }
    values = imported({f"{INTEGRATED}.{key}": value for key, value in given.items()}).values
    found = {key: value for key, value in values.items() if key.startswith("profiler_config")}
    assert found == {
        "profiler_config.profile": True,
        "profiler_config.stage": ("actor_update",),
        "profiler_config.profile_ranks": (0, 1),
        "profiler_config.profile_step_start": 2,
        "profiler_config.profile_step_end": 4,
        "profiler_config.profile_level": "level1",
        "profiler_config.profile_with_memory": True,
        "profiler_config.profile_export_type": "db",
        "profiler_config.profile_save_path": None,
    }


def test_all_stages_and_ranks_are_null_here() -> None:
    result = imported({f"{INTEGRATED}.stage": "all", f"{INTEGRATED}.profile_ranks": "all"})
    assert result.values["profiler_config.stage"] is None
    assert result.values["profiler_config.profile_ranks"] is None


def test_light_marks_are_the_timeline_of_as_many_steps() -> None:
    result = imported({f"{INTEGRATED}.mstx": True, f"{INTEGRATED}.profile_step_end": 6})
    assert result.values["profiler_config.trace_steps"] == 5
    off = of(imported({f"{INTEGRATED}.mstx": False}), f"{INTEGRATED}.mstx")
    assert off.kind == "ignored"
    assert "profiler_config.trace_steps" in off.note
