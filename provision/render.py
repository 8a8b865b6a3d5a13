"""Renders plans as text: the results of the checks before a launch, and the steps. Pure."""

import textwrap
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from provision.lease.lease_plan import describe_config, describe_lease
from provision.model import LaunchOption, Permissions, Preflight, count
from provision.plan import Plan, World
from provision.preflight.quotas import find_quota_kind, render_quota
from provision.resources.launch import LaunchNodes
from provision.resources.shared_volume import find_disks_gib

_WIDTH = 78  # with the indent of a plan: 80 columns
_LABEL = 13


def render_plan(plan: Plan, *, price_note: str = "") -> str:
    """Returns the plan as `--dry-run` prints it: the results of the checks, then the steps.

    price_note: a note to add to the price, such as "simulated".
    """
    if not plan:
        return "\n".join([f"cluster {plan.cluster}: no resources to change", *_render_left_alone(plan)]) + "\n"
    lines = [f"cluster {plan.cluster}:"]
    if plan.world is not None and plan.world.preflight is not None:
        found = render_preflight(plan.world, plan.world.preflight, price_note=price_note)
        lines += [*(f"  {line}" for line in found), ""]
    for number, step in enumerate(plan.steps, start=1):
        lines.append(f"  {number:>2}. {step.describe()}")
        lines.extend(f"      {line}" for line in step.details())
    return "\n".join([*lines, *_render_left_alone(plan)]) + "\n"


def _render_left_alone(plan: Plan) -> list[str]:
    if not plan.left_alone:
        return []
    lines = ["  left alone because they are not trusted (to adopt those that you know: cluster adopt):"]
    return [*lines, *(f"      {each.instance_id}  {each.state}  {each.why}" for each in plan.left_alone)]


def render_preflight(
    world: World, preflight: Preflight, *, now: datetime | None = None, price_note: str = ""
) -> list[str]:
    """Returns lines of at most 78 columns. The first line of each topic begins with a label.

    Prices are for all nodes together. now: the time to which the image's age refers; the default is the present.
    price_note: see render_plan.
    """
    caller, config, launching = world.caller, world.request.config, len(world.missing)
    nodes, volume_size_gib = config.nodes, config.volume_size_gib
    first, launch = preflight.options[0], LaunchNodes(world=world, preflight=preflight)
    moment = now or datetime.now(UTC)
    there = "" if nodes == launching else f"; {nodes - launching} of {nodes} are there already"
    topics: list[tuple[str, str]] = [
        ("account", f"{caller.account_id}, {caller.owner}"),
        ("region", caller.region),
        *(("image", line) for line in _describe_images(preflight.options, moment)),
        ("nodes", f"{launching} x {_describe_type(first)}{there}"),
        ("market", _describe_market(first)),
        ("where", _describe_zones(preflight.options)),
        *(("or", line) for line in _describe_alternatives(preflight.options, nodes)),
        ("placement", "close together, in a cluster placement group" if first.placement else "wherever there is room"),
        *((("efa", "an Elastic Fabric Adapter for each node"),) if first.efa else ()),
        *(("quota", line) for line in _describe_quotas(preflight)),
        ("permissions", _describe_permissions(preflight.permissions)),
        (
            "lease",
            describe_lease(world.state.lease, now=moment.timestamp())
            if world.state.nodes
            else describe_config(world.request.lease, now=moment.timestamp()),
        ),
        ("ssh from", caller.ssh_from + (", to private addresses only" if config.ssh_address == "private" else "")),
        ("disks", f"{count(nodes, 'disk')} of {volume_size_gib} GiB, gp3, encrypted"),
        *(("volumes", line) for line in preflight.mounts),
        (
            "price",
            "; ".join(
                [
                    f"{_describe_price(first, nodes)} {first.how}",
                    _describe_disk_price(preflight, find_disks_gib(world)),
                    *_describe_total(launch),
                    *filter(None, [price_note]),
                ]
            ),
        ),
        *(("not tried", line) for line in preflight.skipped),
    ]
    return _layout(topics)


def _layout(topics: Iterable[tuple[str, str]]) -> list[str]:
    lines: list[str] = []
    previous = ""
    for label, text in topics:
        shown = "" if label == previous else label
        previous = label
        lines += textwrap.wrap(
            text,
            width=_WIDTH,
            initial_indent=shown.ljust(_LABEL),
            subsequent_indent=" " * _LABEL,
            break_long_words=False,  # ids and ARNs are copied whole
            break_on_hyphens=False,
        )
    return lines


def _describe_type(option: LaunchOption) -> str:
    return f"{option.instance_type}: {option.vcpus} vCPUs, {option.gpus}, {option.architecture}"


def _describe_images(options: Iterable[LaunchOption], now: datetime) -> list[str]:
    """Returns one line for each image. If there are several images, each line names its instance types."""
    types: dict[tuple[str, str, datetime], list[str]] = {}
    for option in options:
        image = (option.image_id, option.image_name, option.image_created_at)
        types.setdefault(image, []).append(option.instance_type)
    return [
        f"{image_id} {name}, {count(max((now - created).days, 0), 'day')} old"
        + (f" (for {', '.join(dict.fromkeys(used))})" if len(types) > 1 else "")
        for (image_id, name, created), used in types.items()
    ]


def _describe_market(option: LaunchOption) -> str:
    if option.is_block:
        return f"{option.how}, which has been paid for in advance"
    if option.reservation is not None:
        return f"{option.how}, at the price on demand"
    if option.market == "spot":
        return "spot: AWS may end the nodes at two minutes' notice"
    return "on demand"


def _group(options: Iterable[LaunchOption]) -> list[list[LaunchOption]]:
    """Groups options that differ only by their zone. Keeps the order."""
    groups: dict[tuple[str, str], list[LaunchOption]] = {}
    for option in options:
        groups.setdefault((option.how, option.instance_type), []).append(option)
    return list(groups.values())


def _describe_zones(options: Iterable[LaunchOption]) -> str:
    """Describes the zones of the first type and market: the first zone in full, the others by their names."""
    first, *others = _group(options)[0]
    free = count(first.free_addresses, "free address", "free addresses")
    text = f"{first.zone}, {first.subnet_id} with {free}"
    return text + (f"; then {', '.join(option.zone for option in others)}" if others else "")


def _describe_alternatives(options: Iterable[LaunchOption], nodes: int) -> list[str]:
    """Describes the other types and markets, with prices. They are tried in this order without capacity."""
    return [
        f"{group[0].instance_type} {group[0].how} in {', '.join(option.zone for option in group)}: "
        f"{_describe_type(group[0]).partition(': ')[2]}; {_describe_price(group[0], nodes)}"
        for group in _group(options)[1:]
    ]


def _describe_price(option: LaunchOption, nodes: int) -> str:
    if option.usd_per_hour is None:
        return "unknown per hour"
    return f"{_usd(option.usd_per_hour * nodes)} per hour ({nodes} x {_usd(option.usd_per_hour)})"


def _describe_disk_price(preflight: Preflight, gib: int) -> str:
    """Describes the price of the disks and the head's volume. They cost money until deleted, even in stopped nodes."""
    price = preflight.volume_usd_per_gib_month
    return "disks unknown per month" if price is None else f"disks {_usd(price * gib)} per month"


def _describe_total(launch: LaunchNodes) -> Iterator[str]:
    if addresses := launch.addresses_usd_per_hour:
        yield f"addresses {_usd(addresses)} per hour"
    if (total := launch.usd_per_hour) is not None:
        yield f"in all {_usd(total)} per hour"


def _usd(amount: float) -> str:
    """Shows cents, and below $100 up to hundredths of a cent without trailing zeros: AWS's prices have four digits."""
    if amount >= 100:
        return f"${amount:,.2f}"
    cents, rest = f"{amount:.4f}"[:-2], f"{amount:.4f}"[-2:]
    return f"${cents}{rest.rstrip('0')}"


def _describe_quotas(preflight: Preflight) -> list[str]:
    unknown = dict.fromkeys(
        option.instance_type
        for option in preflight.options
        if find_quota_kind(option.instance_type, option.market) is None
    )
    lines = map(render_quota, preflight.quotas)
    return [*lines, *(f"unknown for {instance_type}: not checked" for instance_type in unknown)]


def _describe_permissions(permissions: Permissions) -> str:
    """Describes the permissions; a missing one has ended the checks."""
    checked = len(permissions.allowed) + len(permissions.unknown)
    if not permissions.unknown:
        return f"{checked} checked, all there"
    return f"{checked} checked, {len(permissions.allowed)} there; could not be told: {', '.join(permissions.unknown)}"
