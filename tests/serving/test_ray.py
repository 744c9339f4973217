"""The server on Ray Serve: what it is told, replicas that die, and a cluster of this machine."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from rag_middle import ContextPrompt, Document
from rag_middle.errors import MethodConfigError, MissingExtraError, UnsupportedGenerationError
from rag_middle.generation import RagMiddleModel
from rag_middle.serving.ray import Arguments, _front, app

DOCUMENTS = [{"text": f"(Town {i}) It lies on the river {name}."} for i, name in enumerate("ABC")]
TOKENS = 120  # random weights end no answer: this takes the tiny model most of a second
LONG = 350

# Of Ray's own pydantic models.
pytestmark = pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")


def body(index: int, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"Which river? {'fox ' * index}"}
    common = {"model": "tested", "messages": [message], "documents": DOCUMENTS}
    return {**common, "max_tokens": TOKENS, **more}


class TestArguments:
    def test_texts_of_the_command_line_are_read(self) -> None:
        read = Arguments.model_validate(
            {
                "model": "m",
                "methods": "pine,none",
                "replicas": "2",
                "num_gpus": "0.5",
                "loading": '{"dtype": "float32"}',
                "trust_markers": "true",
            }
        )
        assert (read.methods, read.replicas, read.num_gpus) == (["pine", "none"], 2, 0.5)
        assert read.loading == {"dtype": "float32"}
        assert read.trust_markers
        assert read.scaling == {"num_replicas": 2}

    def test_autoscaling_aims_at_full_batches(self) -> None:
        read = Arguments(model="m", max_batch_size=4, autoscaling={"max_replicas": 3})
        assert read.scaling == {
            "num_replicas": "auto",
            "autoscaling_config": {"target_ongoing_requests": 4, "max_replicas": 3},
        }
        asked = {"target_ongoing_requests": 1}
        assert Arguments(model="m", autoscaling=asked).scaling["autoscaling_config"] == asked

    def test_ray_that_is_missing_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray.serve", None)
        with pytest.raises(MissingExtraError, match=r"rag-middle\[ray\]"):
            app({"model": "m"})

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({}, "model: Field required.*Arguments: model, methods"),
            ({"model": "m", "replica": "2"}, "replica: Extra inputs"),
            ({"model": "m", "max_batch_size": "0"}, "max_batch_size: .*greater than or equal to 1"),
            ({"model": "m", "loading": "{dtype"}, "loading: "),
            ({"model": "m", "options": {"temprature": 1}}, "Did you mean 'temperature'"),
        ],
    )
    def test_mistakes_are_refused_before_anything_starts(
        self, arguments: dict[str, Any], says: str
    ) -> None:
        pytest.importorskip("ray", reason="needs Ray (extra ray)")
        with pytest.raises(UnsupportedGenerationError, match=says):
            app(arguments)

    def test_two_methods_of_one_name_are_refused(self) -> None:
        pytest.importorskip("ray", reason="needs Ray (extra ray)")
        with pytest.raises(MethodConfigError, match="Two methods"):
            app({"model": "m", "methods": "pine,pine"})


START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/x")]}


class FakeReplicas:
    """A handle whose calls bring these messages, or raise these errors, one list for each call."""

    def __init__(self, *calls: list[Any]) -> None:
        self._calls = list(calls)
        self.answer = self

    def options(self, *, stream: bool) -> FakeReplicas:
        assert stream
        return self

    def remote(self, *_: object) -> Any:
        events = self._calls.pop(0)

        class Answer:
            async def __anext__(self) -> Any:
                if not events:
                    raise StopAsyncIteration
                event = events.pop(0)
                if isinstance(event, BaseException):
                    raise event
                return dict(event)

            def cancel(self) -> None:
                pass

        return Answer()


def ask_front(*calls: list[Any], path: str = "/v1/models", **headers: str) -> httpx.Response:
    """What the deployment in front makes of calls of replicas."""
    pytest.importorskip("ray", reason="needs Ray (extra ray)")
    front = _front(FakeReplicas(*calls), Arguments(model="m"), [])

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(front)
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


class TestFront:
    @pytest.fixture
    def died(self) -> Callable[[], Exception]:
        exceptions = pytest.importorskip("ray.exceptions", reason="needs Ray (extra ray)")
        error: Callable[[], Exception] = exceptions.ActorDiedError
        return error

    def test_another_replica_answers_where_one_died(self, died: Callable[[], Exception]) -> None:
        end = {"type": "http.response.body", "body": b"whole"}
        assert ask_front([died()], [START, end]).text == "whole"
        assert ask_front([START, died()], [START, end]).text == "whole"

    def test_a_request_under_which_replicas_die_may_be_sent_again_later(
        self, died: Callable[[], Exception]
    ) -> None:
        response = ask_front([died()], [died()])
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert response.json()["error"]["code"] == "replica_died"

    def test_a_stream_says_that_its_replica_died(self, died: Callable[[], Exception]) -> None:
        piece = {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
        text = ask_front([START, piece, died()]).text
        assert text.startswith("data: 1\n\ndata: {")
        assert '"code":"replica_died"' in text

    def test_requests_beyond_the_queue_are_refused(self) -> None:
        exceptions = pytest.importorskip("ray.serve.exceptions", reason="needs Ray (extra ray)")
        response = ask_front([exceptions.BackPressureError(64, 64)])
        assert (response.status_code, response.headers["retry-after"]) == (429, "5")

    def test_figures_of_one_replica_are_not_given_for_all(self) -> None:
        assert ask_front(path="/metrics").status_code == 404

    def test_the_key_is_asked_for_and_must_be_on_the_node(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RAG_MIDDLE_API_KEY", "right")
        end = {"type": "http.response.body", "body": b"whole"}
        assert ask_front([START, end]).status_code == 401
        assert ask_front([START, end], authorization="Bearer right").text == "whole"
        monkeypatch.delenv("RAG_MIDDLE_API_KEY")
        with pytest.raises(UnsupportedGenerationError, match="not on this node"):
            _front(FakeReplicas(), Arguments(model="m"), ["RAG_MIDDLE_API_KEY"])


@dataclass(frozen=True)
class Cluster:
    """Two replicas behind a port of this machine."""

    url: str
    ray: Any

    def ask(self, **request: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/chat/completions", json=request, timeout=200)

    def stream(self, **request: Any) -> Any:
        url = f"{self.url}/v1/chat/completions"
        return httpx.stream("POST", url, json={**request, "stream": True}, timeout=100)

    def wait_until_cancelled(self, answers: int) -> None:
        """Until a replica has noted so many answers whose client left."""
        from ray import serve

        model = serve.get_deployment_handle("model", "default").options(stream=True)
        scope = {"type": "http", "method": "GET", "path": "/metrics", "raw_path": b"/metrics"}
        scope |= {"http_version": "1.1", "scheme": "http", "query_string": b"", "headers": []}
        deadline = time.monotonic() + 20
        cancelled = 0.0
        while cancelled < answers:
            assert time.monotonic() < deadline
            text = b"".join(m.get("body", b"") for m in model.answer.remote(scope, b"")).decode()
            [line] = [x for x in text.splitlines() if x.startswith("rag_middle_cancelled_total ")]
            cancelled = float(line.split()[1])

    def replicas(self) -> list[Any]:
        """Those with a model."""
        names = self.ray.util.list_named_actors(all_namespaces=True)
        return [
            self.ray.get_actor(**name)
            for name in names
            if name["name"].startswith("SERVE_REPLICA::default#model#")
        ]


@pytest.fixture(scope="module")
def folder(tiny_model: RagMiddleModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tested")
    tiny_model.model.save_pretrained(path)
    tiny_model.tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    ray = pytest.importorskip("ray", reason="needs Ray (extra ray)")
    from ray import serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        # Otherwise Ray writes one into the home of whoever runs the tests.
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        ray.init(
            num_cpus=2,
            object_store_memory=200 << 20,
            include_dashboard=False,
            log_to_driver=False,
        )
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            loading = {"dtype": "float32", "device": "cpu"}
            arguments = {"model": str(folder), "methods": "none,pine", "loading": loading}
            serve.run(app({**arguments, "served_model_name": "tested", "replicas": 2}))
            yield Cluster(f"http://127.0.0.1:{port}", ray)
        finally:
            ray.shutdown()  # of Serve as well, which would first wait for replicas that start


@pytest.fixture(scope="module")
def expected(folder: Path) -> Callable[[int, str], str]:
    model = RagMiddleModel.from_pretrained(folder, dtype="float32", device="cpu")
    documents = [Document(document["text"]) for document in DOCUMENTS]

    def answer(index: int, method: str) -> str:
        prompt = ContextPrompt(documents=documents, suffix=body(index)["messages"][0]["content"])
        return model.generate(prompt, method=method, max_new_tokens=TOKENS).text

    return answer


def text_of(response: httpx.Response) -> str:
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


@pytest.mark.slow
@pytest.mark.timeout(300)  # replicas import PyTorch, on as few cores as there are
class TestCluster:
    def test_answers_are_those_of_generate(
        self, cluster: Cluster, expected: Callable[[int, str], str]
    ) -> None:
        cases = [(index, method) for index in range(4) for method in ("none", "pine")]
        with ThreadPoolExecutor(len(cases)) as pool:
            responses = list(pool.map(lambda c: cluster.ask(**body(c[0], method=c[1])), cases))
        assert [text_of(response) for response in responses] == [expected(*case) for case in cases]
        assert all(r.json()["rag_middle"]["documents"] == 3 for r in responses)
        assert all(len(r.headers.get_list("x-request-id")) == 1 for r in responses)

    def test_refusals_come_as_they_are(self, cluster: Cluster) -> None:
        assert cluster.ask(**body(0, method="ape")).json()["error"]["code"] == "method_not_allowed"
        assert cluster.ask(**body(0, logit_bias={"5": 1})).status_code == 400

    def test_a_client_that_leaves_ends_its_answer(self, cluster: Cluster) -> None:
        with cluster.stream(**body(0, max_tokens=LONG)) as response:
            next(response.iter_lines())
        cluster.wait_until_cancelled(1)
        request = body(0, max_tokens=LONG, n=16)  # two batches, of seconds
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{cluster.url}/v1/chat/completions", json=request, timeout=1)
        cluster.wait_until_cancelled(8)

    def test_a_replica_that_is_killed_under_load_costs_no_answer(
        self, cluster: Cluster, expected: Callable[[int, str], str]
    ) -> None:
        with ThreadPoolExecutor(12) as pool:
            pending = [pool.submit(cluster.ask, **body(index)) for index in range(24)]
            while not any(future.done() for future in pending):
                time.sleep(0.01)
            cluster.ray.kill(cluster.replicas()[0])
            responses = [future.result() for future in pending]
        for index, response in enumerate(responses):
            if response.status_code == 503:
                assert response.headers["retry-after"]
            else:
                assert text_of(response) == expected(index, "none")
        assert sum(response.status_code == 200 for response in responses) >= 23

    def test_what_was_not_sent_waits_for_a_new_replica(
        self, cluster: Cluster, expected: Callable[[int, str], str]
    ) -> None:
        with ThreadPoolExecutor(1) as pool:
            whole = pool.submit(cluster.ask, **body(1, method="pine"))
            with cluster.stream(**body(2, max_tokens=LONG)) as response:
                lines = response.iter_lines()
                next(lines)
                for replica in cluster.replicas():
                    cluster.ray.kill(replica)
                [*_, last] = filter(None, lines)
            assert '"code":"replica_died"' in last
            assert text_of(whole.result()) == expected(1, "pine")
