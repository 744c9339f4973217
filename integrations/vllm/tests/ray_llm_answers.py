"""Answers of Ray Serve LLM over vLLM with the plugin, for test_ray_llm.py: a process of its own.

Prints one JSON line. The configuration is that of docs/serving.md, on a CPU.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any
from urllib.request import Request, urlopen

import ray
from mixed_requests import prompt
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app

from tests.reader import reader_path

_WORKERS_HAVE = (
    "HF_HUB_OFFLINE",
    "OMP_NUM_THREADS",
    "PYTHONPATH",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
)


def main(goldens: str, method: str, port: int) -> None:
    """Ask the goldens' questions under a method."""
    environment = {name: os.environ[name] for name in _WORKERS_HAVE if name in os.environ}
    ray.init(
        num_cpus=6,  # more than there are: replicas and proxies reserve one each
        include_dashboard=False,
        object_store_memory=200_000_000,
        runtime_env={"env_vars": environment},
    )
    serve.start(http_options={"port": port})
    config = LLMConfig(
        model_loading_config={"model_id": "reader", "model_source": str(reader_path())},
        engine_kwargs={
            "hf_overrides": {"rag_middle": {"method": method}},
            "dtype": "float32",
            "max_model_len": 1536,
            "enforce_eager": True,
        },
        deployment_config={"autoscaling_config": {"min_replicas": 1, "max_replicas": 1}},
        placement_group_config={"bundles": [{"CPU": 1}]},
    )
    serve.run(build_openai_app({"llm_configs": [config]}), blocking=False)
    with open(goldens, encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    answers = []
    for index in range(len(content["texts"])):
        body = {
            "model": "reader",
            "messages": [{"role": "user", "content": prompt(content, index).text}],
            "temperature": 0,
            "max_tokens": 12,
        }
        request = Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urlopen(request, timeout=120) as answer:
            answers.append(json.load(answer)["choices"][0]["message"]["content"].strip())
    print(json.dumps(answers), flush=True)
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
