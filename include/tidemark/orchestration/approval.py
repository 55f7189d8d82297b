"""The operator that asks a person to approve a plan, and binds the answer to the plan's digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import TaskAwaitingInput

from tidemark.catalog.migration.steps import ASK_AGAIN
from tidemark.errors import Refused
from tidemark.orchestration.retry_policy import RETRY_POLICY

if TYPE_CHECKING:
    from airflow.sdk import Context


class PlanApprovalOperator(ApprovalOperator):
    """Wait for *Approve* or *Reject*; return the answer with the digest of the plan that was shown with the question.

    A rejection skips all following tasks. The answer holds for one plan: if the plan is made anew while the question
    waits, ``plan_digest`` (templated) still names the plan of the question, and ``check_approval`` refuses it.
    """

    template_fields: Sequence[str] = (*ApprovalOperator.template_fields, "plan_digest")

    def __init__(self, *, plan_digest: str, **kwargs: Any) -> None:
        kwargs.setdefault("retry_policy", RETRY_POLICY)
        super().__init__(ignore_downstream_trigger_rules=True, **kwargs)
        self.plan_digest = plan_digest

    def execute(self, context: Context) -> None:
        try:
            super().execute(context)
        except TaskAwaitingInput as waiting:
            # On the way back the templates are rendered again, perhaps from another plan.
            kept = {**(waiting.kwargs or {}), "plan_digest": self.plan_digest}
            raise TaskAwaitingInput(method_name=waiting.method_name, kwargs=kept, timeout=waiting.timeout) from None

    def execute_complete(self, context: Context, event: dict[str, Any], plan_digest: str = "") -> dict[str, Any]:
        answer = super().execute_complete(context, event)
        return {
            "approved": answer["chosen_options"] == [self.APPROVE],
            "plan_digest": plan_digest,
            "answered_by": (answer["responded_by_user"] or {}).get("name") or "nobody",
            "answered_at": answer["responded_at"].isoformat(),
        }


def check_approval(approval: Mapping[str, Any] | None, *, plan_digest: str) -> str:
    """Return who approved the plan. Raises ``Refused`` if nobody approved it, or somebody approved another plan."""
    if not approval or not approval["approved"]:
        raise Refused("this plan was not approved: nothing is changed", hint=ASK_AGAIN)
    if approval["plan_digest"] != plan_digest:
        raise Refused("another plan was approved than the present one: nothing is changed", hint=ASK_AGAIN)
    return str(approval["answered_by"])
