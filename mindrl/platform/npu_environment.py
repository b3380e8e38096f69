"""What mindrl does about each environment variable of HCCL, CANN, torch_npu and vllm-ascend.

Sources: vllm-ascend is branch releases/v0.23.0, MindSpeed is branch core_r0.16.0, MindSpeed-RL
is commit 05a90d7, verl is commit 1dda039b9, CANN is its manual of environment variables, release
9.0.0 where no other is named. docs/reference/npu-environment.md is written from this file.
"""

from mindrl.platform.setting import by_default, fixed, if_deterministic, left, refused

_BALANCER = (
    "asks vllm-ascend for the patches of its expert balancer, which mindrl does not turn on: a "
    "reshard writes each expert where the plan puts it"
)

_SET = (
    fixed(
        "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES=1",
        why="else Ray shows each worker one device, as number 0; mindrl takes the device that Ray "
        "gave it by its number among the visible ones",
        source="ray 2.60.0 _private/accelerators/npu.py; verl and MindSpeed-RL set it",
    ),
    fixed(
        "VLLM_ASCEND_ENABLE_NZ=0",
        why="a reshard writes weights in the plain layout, in place; vllm-ascend raises on waking "
        "up where a weight may be in the NZ layout, and 1 is its own default",
        source="vllm-ascend worker/worker.py wake_up; MindSpeed-RL and verl set it",
    ),
    fixed(
        "VLLM_ASCEND_ENABLE_FUSED_MC2=0",
        why="with it the engine keeps the weights of experts in the NZ layout, whatever "
        "VLLM_ASCEND_ENABLE_NZ says, and a reshard writes them in the plain one",
        source="vllm-ascend ops/fused_moe/fused_moe.py process_weights_after_loading",
    ),
    fixed(
        "VLLM_WORKER_MULTIPROC_METHOD=spawn",
        why="a forked process cannot use a device that its parent has opened",
        source="vLLM 0.32.0 envs.py",
    ),
    fixed(
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
        why="Megatron-core and MindSpeed ask for it where tensor parallelism overlaps with "
        "communication, whatever the device; the NPU itself does not read it",
        source="MindSpeed core/transformer/moe/layers.py; MindSpeed-RL sets it",
    ),
    by_default(
        "HCCL_CONNECT_TIMEOUT=1800",
        why="seconds that a rank waits for the others when a group first communicates; with 120, "
        "the default of CANN, a rank that still compiles or loads kernels ends the run",
        source="CANN HCCL_CONNECT_TIMEOUT (120 to 7200); MindSpeed-RL sets 1800",
    ),
)

_DETERMINISTIC = (
    if_deterministic(
        "HCCL_DETERMINISTIC=true",
        why="sums of the collectives in one order",
        source="MindSpeed functional/npu_deterministic; MindSpeed-RL utils.py seed_all",
    ),
    if_deterministic(
        "LCCL_DETERMINISTIC=1",
        why="the same for LCCL",
        source="MindSpeed-RL utils.py seed_all; vllm-ascend batch_invariant.py",
    ),
    if_deterministic(
        "CLOSE_MATMUL_K_SHIFT=1",
        why="products are summed along K in one order, whichever core begins",
        source="MindSpeed functional/npu_deterministic; verl precision_alignment_zh.md",
    ),
    if_deterministic(
        "ATB_MATMUL_SHUFFLE_K_ENABLE=0",
        why="the same for products of ATB, which vllm-ascend calls",
        source="MindSpeed-RL utils.py seed_all; verl precision_alignment_zh.md",
    ),
    if_deterministic(
        "ATB_LLM_LCOC_ENABLE=0",
        why="no product that sends its first rows while it computes the last ones",
        source="MindSpeed-RL utils.py seed_all; verl precision_alignment_zh.md",
    ),
)

_REFUSED = (
    refused(
        "PYTORCH_NPU_ALLOC_CONF",
        pattern="expandable_segments:True",
        why="the memory pool of the engine's sleep mode refuses expandable segments, and mindrl "
        "puts the engine to sleep at every step",
        source="vllm-ascend device_allocator/camem.py and platform.py (not in RL scenarios)",
    ),
    refused(
        "VLLM_ASCEND_ENABLE_FLASHCOMM1",
        pattern="^[1-9]",
        why="shared experts are then whole on each rank of the engine, and mindrl writes them cut",
        source="vllm-ascend ops/linear_op.py get_parallel_op",
    ),
    refused(
        "VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE",
        pattern="^[1-9]",
        why="the output weights of attention are then cut over other groups than the plan of the "
        "reshard cuts them over",
        source="vllm-ascend distributed/parallel_state.py, ops/linear_op.py",
    ),
)

_LEFT = (
    left(
        "ASCEND_RT_VISIBLE_DEVICES",
        why="which devices of the machine a run may use; set it before Ray starts",
        source="CANN ASCEND_RT_VISIBLE_DEVICES",
    ),
    left(
        "HCCL_SOCKET_IFNAME",
        why="network interface of several machines; the launch scripts set it together with "
        "GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME",
        source="CANN HCCL_SOCKET_IFNAME; MindSpeed-RL runtime_env.yaml",
    ),
    left(
        "HCCL_IF_BASE_PORT=60000",
        why="first of 32 ports on which the ranks find each other; reserve them "
        "(net.ipv4.ip_local_reserved_ports), or another program may hold one",
        source="CANN 8.5.0 HCCL_IF_BASE_PORT",
    ),
    left(
        "HCCL_HOST_SOCKET_PORT_RANGE",
        why="needed only where several processes share a device; mindrl has one on each",
        source="CANN HCCL_HOST_SOCKET_PORT_RANGE; verl install_guidance.rst",
    ),
    left(
        "HCCL_EXEC_TIMEOUT=1836",
        why="seconds that a rank waits inside a collective; ranks of mindrl begin each phase "
        "together, so the default does. AIV mode has 1091 at most",
        source="CANN HCCL_EXEC_TIMEOUT; MindSpeed-RL sets 3600",
    ),
    left(
        "HCCL_BUFFSIZE=200",
        why="MB, two buffers for each communicator, and no part of the memory that mindrl plans: "
        "more than the default leaves less for the run",
        pattern="^([3-9][0-9]{2}|[0-9]{4,})$",
        source="CANN HCCL_BUFFSIZE; MindSpeed-RL sets 256",
    ),
    left(
        "HCCL_OP_EXPANSION_MODE",
        why="AIV is faster in decoding, but on A2 the manual allows it for inference with one "
        "communicator; a worker of mindrl has many",
        pattern="AIV",
        source="CANN 8.5.0 HCCL_OP_EXPANSION_MODE; verl perf_tuning_on_ascend.rst",
    ),
    left(
        "TASK_QUEUE_ENABLE=1",
        why="2 hides more of the launch time and raises the peak of device memory; graphs "
        "(generate_config.enforce_eager: false) cannot be captured with it",
        pattern="^2$",
        source="CANN TASK_QUEUE_ENABLE; MindSpeed-RL acl_graph.md sets 2 only without graphs",
    ),
    left(
        "CPU_AFFINITY_CONF",
        why="binds threads to cores by device; vllm-ascend binds its whole process, and so the "
        "trainer, by itself when the engine starts",
        pattern="^[12]",
        source="torch_npu CPU_AFFINITY_CONF; vllm-ascend worker/worker.py bind_cpus",
    ),
    left(
        "ASCEND_LAUNCH_BLOCKING=0",
        why="1 is for debugging: each operation waits for the last, and graphs are refused",
        pattern="^1$",
        source="vllm-ascend platform.py; CANN TASK_QUEUE_ENABLE",
    ),
    left(
        "ASCEND_GLOBAL_LOG_LEVEL=3",
        why="0 and 1 write every call to ~/ascend/log, which is slow and fills the disk",
        pattern="^[01]$",
        source="verl faq.rst",
    ),
    left(
        "DYNAMIC_EPLB=false",
        why=_BALANCER,
        pattern="^(?i:true|1)$",
        source="vllm-ascend patch/platform/__init__.py, ascend_config.py",
    ),
    left(
        "EXPERT_MAP_RECORD=false",
        why=_BALANCER,
        pattern="^true$",
        source="vllm-ascend patch/platform/__init__.py, ascend_config.py",
    ),
    left(
        "VLLM_VERSION",
        why="only where vLLM is built from a commit that is no release: vllm-ascend then cannot "
        "read its version",
        source="vllm-ascend utils.py vllm_version_is",
    ),
    left(
        "VLLM_USE_V1",
        why="vLLM has one engine and does not read it any more",
        source="vLLM 0.32.0 envs.py; MindSpeed-RL sets it for vLLM 0.11",
    ),
)

NPU_SETTINGS = (*_SET, *_DETERMINISTIC, *_REFUSED, *_LEFT)
