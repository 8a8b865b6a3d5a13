"""Terraform with its AWS provider, where both are installed: see TF_CLI_CONFIG_FILE for a mirror of providers."""

import os
import shutil
from pathlib import Path

import boto3
import pytest

from other_tools import Tool, environment_of
from sandbox_steps import RunningSandbox, Ssh, find_image, find_live

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(600)]

PLAN = """
terraform {
  required_providers {
    aws = {
      source = "hashicorp/aws"
    }
  }
}
provider "aws" {
  region = "us-east-1"
}
resource "aws_security_group" "ssh" {
  name = "terraform"
  ingress {
    from_port   = 22
    to_port     = 22
    protocol    = "tcp"
    cidr_blocks = ["0.0.0.0/0"]
  }
}
resource "aws_key_pair" "mine" {
  key_name   = "terraform"
  public_key = "%s"
}
resource "aws_instance" "node" {
  ami                    = "%s"
  instance_type          = "m5.large"
  key_name               = aws_key_pair.mine.key_name
  vpc_security_group_ids = [aws_security_group.ssh.id]
}
output "address" {
  value = aws_instance.node.public_ip
}
"""


def test_apply_and_destroy(sandbox: RunningSandbox, ssh: Ssh, tmp_path: Path) -> None:
    program = shutil.which("terraform")
    if program is None or not Path(os.environ.get("TF_CLI_CONFIG_FILE", "")).is_file():
        pytest.skip("terraform or TF_CLI_CONFIG_FILE, which names a mirror with hashicorp/aws, is missing")
    env = environment_of(sandbox.project_dir, home=tmp_path)
    env["TF_CLI_CONFIG_FILE"] = os.environ["TF_CLI_CONFIG_FILE"]
    key = ssh.key.with_suffix(".pub").read_text().strip()
    (tmp_path / "main.tf").write_text(PLAN % (key, find_image()))
    terraform = Tool(program=program, env=env, directory=tmp_path)
    terraform.run("init", "-no-color")
    terraform.run("apply", "-auto-approve", "-no-color", timeout_s=300)
    address = terraform.run("output", "-raw", "address").strip()
    assert ssh.read(address, "id -un") == "ubuntu"
    terraform.run("destroy", "-auto-approve", "-no-color", timeout_s=300)
    assert not find_live(boto3.client("ec2"))
