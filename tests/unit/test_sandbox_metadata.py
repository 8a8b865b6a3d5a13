"""Parts of the instance metadata service that need no host."""

from sandbox.metadata import Tokens
from sandbox.metadata_tree import list_folder

TREE = {
    "meta-data/iam/info": "{}",
    "meta-data/iam/security-credentials/trainer": "{}",
    "meta-data/instance-id": "i-1",
    "meta-data/public-keys/0/openssh-key": "ssh-ed25519 A",
}


def test_token_is_one_instances_until_its_end() -> None:
    now = [1000.0]
    tokens = Tokens(clock=lambda: now[0])
    token = tokens.issue("i-1", 60)
    assert tokens.is_good("i-1", token)
    assert not tokens.is_good("i-2", token)
    assert not Tokens(clock=lambda: now[0]).is_good("i-1", token)
    now[0] += 60.1
    assert not tokens.is_good("i-1", token)


def test_made_up_tokens_are_refused() -> None:
    tokens = Tokens()
    for token in ("", "x", "é", "A" * 56, tokens.issue("i-1", 60)[:-4]):
        assert not tokens.is_good("i-1", token), token


def test_folders_list_their_entries() -> None:
    assert list_folder(TREE, "meta-data", None) == "iam/\ninstance-id\npublic-keys/"
    assert list_folder(TREE, "meta-data/iam/security-credentials", None) == "trainer"
    assert list_folder(TREE, "meta-data/public-keys", "mine") == "0=mine"
    assert list_folder(TREE, "meta-data/public-keys/0", "mine") == "openssh-key"
    assert list_folder(TREE, "meta-data/nothing", None) is None
