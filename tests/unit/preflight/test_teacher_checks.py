"""A teacher that does not fit the policy is refused before a cluster is started."""

import json
from pathlib import Path
from typing import Any

from checked_runs import CPU, DEVICES, MakeConfig, model_folder, overrides, refused

from mindrl.config.algorithm_rules import algorithm_findings
from mindrl.config.run import RunConfig
from mindrl.memory.schedule import PHASE_ROLES, UPDATES, Phase, Region
from mindrl.preflight.checks import check
from mindrl.preflight.machine_checks import teacher_findings
from mindrl.preflight.memory_plan import Capacity, judged_memory, memory_plan
from mindrl.preflight.run_shardings import unordered_shardings

WORDS = {"a": 0, "b": 1, "c": 2}


def with_tokenizer(
    folder: Path, vocabulary: Any = WORDS, added: tuple[tuple[str, int], ...] = ()
) -> Path:
    more = [{"content": token, "id": number} for token, number in added]
    values = {"model": {"vocab": vocabulary}, "added_tokens": more}
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def taught(make: MakeConfig, policy: Path, teacher: Path, **changes: Any) -> RunConfig:
    given = {"teacher_config.load": str(teacher), "rl_config.adv_estimator": "teacher"}
    return make(policy, overrides(policy.parent) | given | changes)


def test_a_teacher_of_another_size_with_a_padded_vocabulary_fits(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy, larger = model_folder(tmp_path / "policy"), tmp_path / "larger"
    model_folder(larger, num_hidden_layers=3, hidden_size=56, vocab_size=128)
    plan = check(taught(run_config, policy, larger), CPU)
    assert plan.models["teacher"].num_hidden_layers == 3
    assert plan.models["actor"].num_hidden_layers == 1


def test_a_teacher_with_fewer_tokens_or_in_an_impossible_layout_is_refused(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy, small = model_folder(tmp_path / "policy"), model_folder(tmp_path / "s", vocab_size=64)
    assert refused(taught(run_config, policy, small)) == [
        f"teacher_config.load={small} has a vocabulary of 64 tokens; the actor's has 96"
    ]
    own = {DEVICES: 8, "teacher_config.tensor_model_parallel_size": 8}
    assert refused(taught(run_config, policy, policy, **own))[0] == (
        "teacher_config.tensor_model_parallel_size=8 must divide num_attention_heads=28; "
        "nearest: 7, 14"
    )


def test_an_estimator_without_rewards_needs_a_teacher_and_a_teacher_a_weight(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy = model_folder(tmp_path / "policy")
    alone = overrides(tmp_path) | {"rl_config.adv_estimator": "teacher"}
    assert refused(run_config(policy, alone)) == [
        (
            "teacher_config is missing: rl_config.adv_estimator=teacher has no other advantages; "
            "write `teacher_config: {load: FOLDER}`"
        )
    ]
    unused = taught(run_config, policy, policy, **{"teacher_config.advantage_coef": 0.0})
    assert refused(unused) == [
        (
            "teacher_config.advantage_coef=0 gives the teacher no effect; use a weight above 0, "
            "or remove the section"
        )
    ]


def test_keys_of_the_form_that_the_teacher_does_not_have_are_refused(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy = model_folder(tmp_path / "policy")
    no_weight = "gives the teacher no effect; use a weight above 0, or remove the section"
    form = "has no effect: with teacher_config.candidates={} the signal is {}"
    cases: dict[str, dict[str, Any]] = {
        f"divergence_coef=0 {no_weight}": {"candidates": 8, "divergence_coef": 0.0},
        f"advantage_coef=0.5 {form.format(8, 'a term of the loss')}": {
            "candidates": 8,
            "advantage_coef": 0.5,
        },
        f"divergence=forward {form.format(0, 'an advantage')}": {"divergence": "forward"},
        "candidates=97 must be at most the policy's vocabulary of 96 tokens": {"candidates": 97},
    }
    for text, given in cases.items():
        keys = {f"teacher_config.{key}": value for key, value in given.items()}
        assert refused(taught(run_config, policy, policy, **keys)) == [f"teacher_config.{text}"]
    plan = check(taught(run_config, policy, policy, **{"teacher_config.candidates": 96}), CPU)
    assert plan.candidates("teacher") == (96, 96)
    assert plan.candidates("actor") is None
    counted = {
        phase: plan.likely_tokens(role, learns=phase in UPDATES)
        for phase, role in PHASE_ROLES.items()
        if role in plan.config.roles
    }
    assert counted == {Phase.TEACHER: 96, Phase.FORWARD: 0, Phase.TRAIN: 96}


def test_supervised_fine_tuning_needs_the_tokens_of_a_teacher(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy = model_folder(tmp_path / "policy")
    rows = {"sft_config.turns": "all", "rl_config.n_samples_per_prompt": 8}
    taught_rows = overrides(tmp_path) | rows | {"teacher_config.load": str(policy)}
    assert refused(run_config(policy, taught_rows)) == [
        (
            "teacher_config.candidates=0 must be 1 or more with sft_config: no responses are "
            "sampled that could have advantages"
        )
    ]
    plan = check(run_config(policy, taught_rows | {"teacher_config.candidates": 8}), CPU)
    assert plan.candidates("teacher") == (8, 96)
    alone = overrides(tmp_path) | rows | {"sft_config.answer_coef": 0.5}
    assert refused(run_config(policy, alone)) == [
        (
            "sft_config.answer_coef=0.5 has no effect without a teacher_config: the loss is that "
            "of the answers alone"
        )
    ]


def test_another_tokenizer_is_refused_with_the_first_token_that_differs(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy = with_tokenizer(tmp_path / "policy", added=(("<end>", 3),))

    def found(teacher: Path) -> list[str]:
        return [str(each) for each in teacher_findings(taught(run_config, policy, teacher))]

    start, rest = "teacher_config.load={} needs the tokenizer in {}: {}", "; use a model of the "
    cases = {
        "'b' is token 1 of the policy, and 2 of the teacher": {"a": 0, "b": 2, "c": 1, "<end>": 3},
        "'<end>' is token 3 of the policy, and None of the teacher": WORDS,
    }
    for number, (why, vocabulary) in enumerate(cases.items()):
        other = with_tokenizer(tmp_path / f"other{number}", vocabulary)
        said = start.format(other, policy, why) + rest + "policy's family"
        assert found(other) == [said]
    assert found(with_tokenizer(tmp_path / "more", WORDS | {"<end>": 3, "d": 4})) == []
    # As unigram tokenizers write it: pairs of token and score.
    pairs = [[token, 0.0] for token in (*WORDS, "<end>")]
    assert found(with_tokenizer(tmp_path / "unigram", pairs)) == []


def test_tokenizers_without_a_json_file_are_compared_by_their_files(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    folders = {name: tmp_path / name for name in ("policy", "same", "other", "none")}
    contents = {"policy": b"one", "same": b"one", "other": b"two"}
    for name, folder in folders.items():
        folder.mkdir()
        if name in contents:
            (folder / "tokenizer.model").write_bytes(contents[name])
    fits = {
        name: not [*teacher_findings(taught(run_config, folders["policy"], folder))]
        for name, folder in folders.items()
    }
    assert fits == {"policy": True, "same": True, "other": False, "none": False}


def of_source(source: str, folder: Path) -> dict[str, str]:
    return {"data_source": source, "load": str(folder)}


def test_teachers_by_source_need_one_size_one_entry_each_and_room_for_each_other(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy, first = model_folder(tmp_path / "policy"), model_folder(tmp_path / "first")
    larger = model_folder(tmp_path / "larger", num_hidden_layers=3)
    missing = tmp_path / "missing"
    models, load = "teacher_config.models", f"teacher_config.load={policy}"
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {models: [of_source("math", first), of_source("code", larger)]},
            f"{models}.1.load={larger} needs the sizes of {load}: they take turns in one layout",
        ),
        (
            {models: [of_source("math", missing)]},
            f"{models}.0.load: model folder {missing} does not exist",
        ),
        (
            {models: [of_source("math", first), of_source("math", policy)]},
            f"{models} has math more than once; give each data_source one teacher",
        ),
        (
            {models: [of_source("math", first)], "teacher_config.offload_param": False},
            (
                f"teacher_config.offload_param=false must be true with several {models}, which "
                "take turns on the devices"
            ),
        ),
    ]
    for keys, text in cases:
        assert refused(taught(run_config, policy, policy, **keys)) == [text]
    plan = check(taught(run_config, policy, policy, **{models: [of_source("math", first)]}), CPU)
    section = plan.config.teacher_config
    assert section is not None
    assert section.folders == (str(policy), str(first))
    assert [section.number(each) for each in ("math", "", "code")] == [1, 0, 0]


def test_the_tokenizer_of_each_teacher_is_compared(tmp_path: Path, run_config: MakeConfig) -> None:
    policy = with_tokenizer(tmp_path / "policy")
    other = with_tokenizer(tmp_path / "other", {"a": 0, "b": 2, "c": 1})
    models = [of_source("math", policy), of_source("code", other)]
    found = teacher_findings(
        taught(run_config, policy, policy, **{"teacher_config.models": models})
    )
    assert [str(each).partition(" needs")[0] for each in found] == [
        f"teacher_config.models.1.load={other}"
    ]


def test_the_memory_of_a_device_counts_one_teacher_and_that_of_the_host_all(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy = model_folder(tmp_path / "policy")
    three = [of_source(each, model_folder(tmp_path / each)) for each in ("math", "code")]
    plans = [
        memory_plan(unordered_shardings(taught(run_config, policy, policy, **keys)), None)
        for keys in ({}, {"teacher_config.models": three})
    ]
    one, all_of_them = plans
    assert one.peak_bytes == all_of_them.peak_bytes
    weights = int(one.regions[Region.TEACHER_WEIGHTS][0])
    more = int((all_of_them.host_bytes - one.host_bytes)[0])
    # Two more, each storage rounded up to 512 bytes at most.
    assert 2 * weights <= more <= 2 * (weights + 512 * 20)


def test_a_host_without_room_for_several_teachers_names_one(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy = model_folder(tmp_path / "policy", vocab_size=9600)
    models = [of_source("math", model_folder(tmp_path / "math", vocab_size=9600))]
    stay = {f"generate_config.offload_train_{part}": False for part in ("param", "optimizer")}
    config = taught(run_config, policy, policy, **stay, **{"teacher_config.models": models})
    # Those on the device cannot stay there: they take turns.
    (finding,), _ = judged_memory(unordered_shardings(config), Capacity(host_bytes=4 << 20))
    assert (finding.field, finding.legal) == ("teacher_config.models.0.load", ())


SERVER = {"teacher_config.url": "http://127.0.0.1:8000", "rl_config.adv_estimator": "teacher"}


def test_a_teacher_on_a_server_takes_no_device_of_the_run(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy = model_folder(tmp_path / "policy")
    plan = check(run_config(policy, overrides(tmp_path) | SERVER), CPU)
    assert "teacher" not in plan.layouts
    assert unordered_shardings(plan.config).waiting is None
    more = SERVER | {"teacher_config.candidates": 8}
    plan = check(run_config(policy, overrides(tmp_path) | more), CPU)
    assert plan.candidates("teacher") == (8, 96)
    assert plan.likely_tokens("actor", learns=True) == 8


SERVED_MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "both": (
        {"teacher_config.load": "models/a"},
        "teacher_config.load=models/a has no effect with teacher_config.url: ",
    ),
    "a layout": (
        {"teacher_config.tensor_model_parallel_size": 2},
        "teacher_config.tensor_model_parallel_size=2 has no effect with teacher_config.url: ",
    ),
    "no address": (
        {"teacher_config.url": "127.0.0.1:8000"},
        "teacher_config.url=127.0.0.1:8000 must be a URL such as http://127.0.0.1:8000",
    ),
    "another temperature": (
        {"generate_config.sampling_config.temperature": 0.7},
        "generate_config.sampling_config.temperature=0.7 must be 1 with teacher_config.url: ",
    ),
    "neither": (
        {"teacher_config.url": None, "teacher_config.divergence": "reverse"},
        "teacher_config.load is missing: name a model folder, or a server by teacher_config.url",
    ),
    "a token for no server": (
        {"teacher_config.url": None, "teacher_config.load": ".", "teacher_config.token_file": "t"},
        "teacher_config.token_file=t has no effect without teacher_config.url",
    ),
}


def test_a_teacher_without_a_model_is_named(tmp_path: Path, run_config: MakeConfig) -> None:
    policy = model_folder(tmp_path / "policy")
    given = {"teacher_config": {}, "rl_config.adv_estimator": "teacher"}
    (found,) = refused(run_config(policy, overrides(tmp_path) | given))
    assert found.startswith("teacher_config.load is missing: name a model folder, or a server")


def test_what_a_served_teacher_cannot_have_is_refused_by_key(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    policy = model_folder(tmp_path / "policy")
    for name, (more, words) in SERVED_MISTAKES.items():
        config = run_config(policy, overrides(tmp_path) | SERVER | more)
        (found,) = map(str, algorithm_findings(config))
        assert found.startswith(words), name
