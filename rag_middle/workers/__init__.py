"""Who does the work of a long run: this process, several, or a Ray cluster."""

from rag_middle.workers.base import InProcess, MakeWork, Workers, torch_threads
from rag_middle.workers.devices import worker_devices
from rag_middle.workers.processes import Processes
from rag_middle.workers.ray_actors import RayWorkers

__all__ = [
    "InProcess",
    "MakeWork",
    "Processes",
    "RayWorkers",
    "Workers",
    "torch_threads",
    "worker_devices",
]
