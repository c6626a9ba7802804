"""What another policy would have earned, told from logged decisions."""

from bandits.evaluation.columns import Columns
from bandits.evaluation.compare import Evaluation, Row, evaluate
from bandits.evaluation.logs import LoggedEvent, read_events
from bandits.evaluation.policies import POLICY_FORMS
from bandits.evaluation.table import Log, load_log, log_of, table

__all__ = [
    "POLICY_FORMS",
    "Columns",
    "Evaluation",
    "Log",
    "LoggedEvent",
    "Row",
    "evaluate",
    "load_log",
    "log_of",
    "read_events",
    "table",
]
