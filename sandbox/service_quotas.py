"""AWS's Service Quotas for EC2's vCPUs, on top of moto's, which knows those of VPC alone.

https://docs.aws.amazon.com/servicequotas/2019-06-24/apireference/API_GetServiceQuota.html
"""

import json
from collections.abc import Mapping
from typing import Any

from moto.servicequotas import urls as quota_urls
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.models import ServiceQuotasBackend
from moto.servicequotas.responses import ServiceQuotasResponse

from sandbox.quotas import GRANTED, QUOTAS, Quota


class SandboxQuotasBackend(ServiceQuotasBackend):
    """moto's, and EC2. `granted`: vCPUs by quota code, where it is not the default; set before the first call."""

    granted: Mapping[str, int]
    _url_module = quota_urls

    def list_quotas(self, service_code: str, *, default: bool) -> list[dict[str, Any]]:
        """The quotas of a service: those that AWS gives a new account, or those that hold. Raises NoSuchResource."""
        if service_code != "ec2":
            found: list[dict[str, Any]] = super().list_aws_default_service_quotas(service_code)
            return found
        return [
            self._render(quota, quota.aws_default if default else self.granted.get(quota.code, GRANTED))
            for quota in QUOTAS.values()
        ]

    def get_quota(self, service_code: str, quota_code: str, *, default: bool) -> dict[str, Any]:
        """One of them. Raises NoSuchResource."""
        for quota in self.list_quotas(service_code, default=default):
            if quota["QuotaCode"] == quota_code:
                return quota
        raise NoSuchResource

    def _render(self, quota: Quota, value: int) -> dict[str, Any]:
        return {
            "ServiceCode": "ec2",
            "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
            "QuotaArn": f"arn:aws:servicequotas:{self.region_name}:{self.account_id}:ec2/{quota.code}",
            "QuotaCode": quota.code,
            "QuotaName": quota.name,
            "Value": float(value),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }


class SandboxQuotasResponse(ServiceQuotasResponse):
    """The four actions that read quotas."""

    @property
    def _quotas(self) -> SandboxQuotasBackend:
        backend = self.backend
        assert isinstance(backend, SandboxQuotasBackend)  # noqa: S101 -- moto_setup.py put it there
        return backend

    def _list(self, *, default: bool) -> str:
        asked = json.loads(self.body)
        return json.dumps({"Quotas": self._quotas.list_quotas(asked["ServiceCode"], default=default)})

    def _get(self, *, default: bool) -> str:
        asked = json.loads(self.body)
        return json.dumps({"Quota": self._quotas.get_quota(asked["ServiceCode"], asked["QuotaCode"], default=default)})

    def list_service_quotas(self) -> str:
        """Those that hold."""
        return self._list(default=False)

    def list_aws_default_service_quotas(self) -> str:
        """Those of a new account."""
        return self._list(default=True)

    def get_service_quota(self) -> str:
        """One that holds."""
        return self._get(default=False)

    def get_aws_default_service_quota(self) -> str:
        """One of a new account."""
        return self._get(default=True)
