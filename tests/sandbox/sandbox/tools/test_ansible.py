"""Ansible and its collection amazon.aws, as installed from PyPI."""

from pathlib import Path

import boto3
import pytest

from other_tools import Tool, environment_of, install, own_address
from sandbox_steps import RunningSandbox, find_image, find_live

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(900)]

# The second play finds its host, the address and the user through the inventory alone.
PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  tasks:
    - amazon.aws.ec2_key: {name: ansible, key_type: ed25519, file_name: "{{ playbook_dir }}/key.pem"}
    - amazon.aws.ec2_security_group:
        name: ansible
        description: for a test
        rules: [{proto: tcp, ports: [22], cidr_ip: "{{ own }}/32"}]
    - amazon.aws.ec2_instance:
        {name: made, image_id: "{{ image }}", instance_type: t3.micro, key_name: ansible, security_group: ansible,
         state: running, wait: true, tags: {part: of-ansible}}
    - meta: refresh_inventory
- hosts: aws_ec2
  gather_facts: false
  vars: {ansible_ssh_private_key_file: "{{ playbook_dir }}/key.pem"}
  tasks:
    - wait_for_connection: {timeout: 60}
    - copy: {content: "written as root", dest: /etc/made, mode: "0644"}
      become: true
    - command: sh -c 'echo "$(id -un) reads $(cat /etc/made) on $(hostname)"'
      register: made
    - debug: {msg: "{{ made.stdout == 'ubuntu reads written as root on ' ~ private_dns_name.split('.')[0] }}"}
- hosts: localhost
  gather_facts: false
  tasks:
    - amazon.aws.ec2_instance: {state: terminated, filters: {"tag:part": of-ansible}, wait: true}
    - amazon.aws.ec2_security_group: {name: ansible, state: absent}
    - amazon.aws.ec2_key: {name: ansible, state: absent}
"""
INVENTORY = """
plugin: amazon.aws.aws_ec2
regions: [us-east-1]
filters: {instance-state-name: running, "tag:part": of-ansible}
hostnames: [ip-address]
compose: {ansible_user: "'ubuntu'"}
"""


def test_ansible_playbook(sandbox: RunningSandbox, tmp_path: Path) -> None:
    ec2 = boto3.client("ec2")
    before = find_live(ec2)
    programs = install(tmp_path / "venv", "ansible", "boto3")
    env = environment_of(sandbox.project_dir, home=tmp_path, programs=programs)
    (tmp_path / "play.yaml").write_text(PLAYBOOK)
    (tmp_path / "aws_ec2.yaml").write_text(INVENTORY)
    settings = {"ANSIBLE_HOST_KEY_CHECKING": "False", "ANSIBLE_NOCOLOR": "1"}
    ansible = Tool(program=str(programs / "ansible-playbook"), env=env | settings, directory=tmp_path)
    given = ("-e", f"image={find_image()}", "-e", f"own={own_address(env)}")
    output = ansible.run("-i", "aws_ec2.yaml", *given, "play.yaml", timeout_s=600)
    assert '"msg": true' in output, output
    assert find_live(ec2) == before
    assert "ansible" not in {group["GroupName"] for group in ec2.describe_security_groups()["SecurityGroups"]}
    assert "ansible" not in {key["KeyName"] for key in ec2.describe_key_pairs()["KeyPairs"]}
