"""Does this installation compute what the papers' authors computed?

::

    report = verify()                 # the golden cases shipped with the package
    report = verify("path/to/cases")  # others, in the same format
    assert report.passed, report.failures

A golden case holds the prompt, the parameters and the logits that another implementation gave: the
authors' code where there is some. ``cases`` reads them, ``methods`` finds the method object that
should give the same, ``runs`` compares, ``report`` says how it went.
"""

from rag_middle.verify.cases import GoldenCase, load_cases, shipped_directory
from rag_middle.verify.report import CaseResult, MethodResults, VerificationReport
from rag_middle.verify.runs import TOLERANCE, verify

__all__ = [
    "TOLERANCE",
    "CaseResult",
    "GoldenCase",
    "MethodResults",
    "VerificationReport",
    "load_cases",
    "shipped_directory",
    "verify",
]
