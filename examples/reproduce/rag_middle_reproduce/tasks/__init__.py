"""Tasks of the papers that need data of their own; see `rag_middle.evaluation.Task`.

Importing this registers them, so that they are known without installing the package, too.
"""

from rag_middle.evaluation import TASKS
from rag_middle_reproduce.tasks.benchmarks import LEval, LongBench, ZeroScrolls
from rag_middle_reproduce.tasks.json_pairs import JsonPairs
from rag_middle_reproduce.tasks.judging import PairwiseJudge
from rag_middle_reproduce.tasks.multiple_choice import MultipleChoice
from rag_middle_reproduce.tasks.timeline import TimelineOrder
from rag_middle_reproduce.tasks.written_qa import SentenceQA, WrittenQA

for _task in (
    *(JsonPairs, LEval, LongBench, MultipleChoice, PairwiseJudge),
    *(SentenceQA, TimelineOrder, WrittenQA, ZeroScrolls),
):
    TASKS.register(_task.name, _task)
