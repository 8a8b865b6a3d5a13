"""IAM's SimulatePrincipalPolicy, which moto lacks: what a user's or a role's policies say, without doing it.

https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html
"""

from collections.abc import Iterable
from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.iam import urls as iam_urls
from moto.iam.responses import IamResponse

from sandbox.policies import Ask, PolicyError, parse_policy
from sandbox.principals import Principal, find_by_arn

DECISIONS = {"allowed": "allowed", "denied": "explicitDeny", "unmentioned": "implicitDeny"}


class SimulationError(ServiceException):
    """A simulation is not possible."""


class SandboxIamResponse(IamResponse):
    """moto's actions, and the simulation."""

    def simulate_principal_policy(self) -> ActionResult:
        """A decision for each action on each resource."""
        arn = str(self._get_param("PolicySourceArn"))
        context = {
            str(entry["ContextKeyName"]).lower(): tuple(map(str, entry.get("ContextKeyValues", [])))
            for entry in self._get_param("ContextEntries", [])
        }
        try:
            principal = find_by_arn(arn)
            further = tuple(parse_policy(text) for text in self._get_param("PolicyInputList", []))
        except PolicyError as error:
            raise SimulationError("InvalidInput", f"A policy is not understood: {error}") from error
        if principal is None:
            raise SimulationError("NoSuchEntity", f"{arn} is no user and no role.")
        if further:
            own, *limits = principal.grants
            principal = Principal(arn=arn, grants=((*own, *further), *limits))
        asks = [
            Ask(action=str(action), resource=str(resource), context=context)
            for action in self._get_param("ActionNames", [])
            for resource in self._get_param("ResourceArns", []) or ["*"]
        ]
        return ActionResult({"EvaluationResults": list(_evaluate(principal, asks)), "IsTruncated": False})


def _evaluate(principal: Principal, asks: Iterable[Ask]) -> Iterable[dict[str, Any]]:
    for ask in asks:
        decision = DECISIONS[principal.decide(ask)]
        missing = sorted(
            {
                condition.key
                for group in principal.grants
                for policy in group
                for statement in policy.statements
                if statement.names(ask)
                for condition in statement.conditions
                if condition.key not in ask.context
            }
        )
        result = {"EvalResourceName": ask.resource, "EvalResourceDecision": decision, "MissingContextValues": missing}
        yield {
            "EvalActionName": ask.action,
            "EvalResourceName": ask.resource,
            "EvalDecision": decision,
            "MatchedStatements": [],
            # With resources what is missing stands with them alone.
            "MissingContextValues": missing if ask.resource == "*" else [],
            "ResourceSpecificResults": [] if ask.resource == "*" else [result],
        }


def install_simulation() -> None:
    """Puts it in moto's place, before the first call."""
    iam_urls.url_paths = {"{0}/$": SandboxIamResponse.dispatch}
