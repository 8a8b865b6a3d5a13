"""The sandbox's own credentials with other rights for a while, as a policy has them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from iam_steps import allow, client_of, document
from sandbox.principals import OPERATOR, OPERATOR_POLICY
from test_fidelity import client


@contextmanager
def limited_operator(policy: str) -> Iterator[None]:
    """The operator may do what this policy says, and nothing else."""
    iam = client("iam")
    iam.create_user(UserName="administrator")
    iam.put_user_policy(UserName="administrator", PolicyName="all", PolicyDocument=document(allow("*")))
    key = iam.create_access_key(UserName="administrator")["AccessKey"]
    administrator = client_of("iam", key)  # who can give the operator their rights back
    kept = iam.get_user_policy(UserName=OPERATOR, PolicyName=OPERATOR_POLICY)["PolicyDocument"]
    administrator.put_user_policy(UserName=OPERATOR, PolicyName=OPERATOR_POLICY, PolicyDocument=policy)
    try:
        yield
    finally:
        administrator.put_user_policy(UserName=OPERATOR, PolicyName=OPERATOR_POLICY, PolicyDocument=json.dumps(kept))
        iam.delete_access_key(UserName="administrator", AccessKeyId=key["AccessKeyId"])
        iam.delete_user_policy(UserName="administrator", PolicyName="all")
        iam.delete_user(UserName="administrator")
