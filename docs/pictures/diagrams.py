"""Draws the documentation's diagrams: `make pictures`. Pure, except that `main` writes the files."""

from pathlib import Path

STYLE = """<style>
text{font:14px system-ui,sans-serif;fill:#1f2328}
.title{font-weight:600}.small{font-size:12px;fill:#57606a}.middle{text-anchor:middle}
.box{fill:#fff;stroke:#57606a}.zone{fill:#f6f8fa;stroke:#8c959f;stroke-dasharray:5 4}
path{stroke:#0969da;fill:none;stroke-width:1.5}marker path{fill:#0969da;stroke:none}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}.small{fill:#9198a1}.box{fill:#161b22;stroke:#9198a1}.zone{fill:#0d1117;stroke:#6e7681}
path{stroke:#4493f8}marker path{fill:#4493f8}}
</style><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0 8 4 0 8z"/></marker></defs>
"""
LINE = 18  # pixels


def main() -> None:
    """Writes created.svg, connections.svg and endings.svg."""
    for name, picture in (("created", created()), ("connections", connections()), ("endings", endings())):
        Path(__file__).with_name(f"{name}.svg").write_text(picture)


def created() -> str:
    """What `cluster up` creates."""
    parts = (
        zone(210, 10, 560, 330, "your AWS account, one region; every resource has the tag cluster:name"),
        zone(234, 44, 512, 190, "security group: ssh from your address, everything between the nodes"),
        zone(258, 74, 464, 144, "placement group (two or more nodes)"),
        box(282, 106, 190, 92, "node-0, the head", "EC2 instance, public address", "root volume, encrypted"),
        box(508, 106, 190, 92, "node-1 ...", "EC2 instance, public address", "root volume, encrypted"),
        box(234, 252, 150, 66, "key pair", "its public half"),
        box(402, 252, 160, 66, "role, profile", "only if you ask for them"),
        box(580, 252, 166, 66, "shared volume", "only with [[volumes]]"),
        box(10, 106, 164, 92, "your machine", "private key, known hosts", "cluster.toml"),
        arrow("M174 152H278", "ssh", (192, 144)),
    )
    return svg(780, 350, "What cluster up creates", *parts)


def connections() -> str:
    """Who talks to whom."""
    parts = (
        box(10, 40, 180, 92, "your machine", "the command cluster", "your AWS credentials"),
        box(10, 236, 180, 72, "AWS's APIs", "EC2, IAM, prices, quotas"),
        zone(340, 10, 440, 178, "nodes, in one security group"),
        box(362, 44, 180, 120, "node-0, the head", "supervisor of the job", "agent, its ranks"),
        box(600, 44, 160, 120, "node-1 ...", "agent, its ranks"),
        box(440, 236, 240, 72, "S3", "datasets, results"),
        arrow("M190 84H336", "ssh, pinned host keys", (263, 76)),
        arrow("M542 84H596", "ssh", (569, 76)),
        arrow("M600 134H546", "ranks", (571, 152)),
        arrow("M100 132V232", "boto3", (124, 186)),
        arrow("M150 132C190 240 280 272 436 274", "data put, get", (290, 292)),
        arrow("M480 164V232", "temporary credentials", (560, 216)),
        arrow("M640 164V232"),
    )
    return svg(790, 320, "Who talks to whom", *parts)


def endings() -> str:
    """How a job ends."""
    causes = (
        ("a rank ends", "exit code, signal, last line"),
        ("a node is lost", "silent for 15 s, or a spot notice"),
        ("no progress", "stall_timeout, max_duration"),
        ("cluster stop", "or Ctrl-C, then s"),
    )
    parts = (
        *(box(10, 20 + 90 * number, 210, 62, *words) for number, words in enumerate(causes)),
        *(arrow(f"M220 {51 + 90 * number}C270 {51 + 90 * number} 260 186 306 186") for number in range(4)),
        box(310, 140, 180, 92, "supervisor", "on the head: the first", "failure decides"),
        box(580, 20, 200, 62, "all processes end", "SIGTERM, after 2 s SIGKILL"),
        box(580, 110, 200, 62, "the last files to S3", "$CLUSTER_OUTPUT_DIR"),
        box(580, 200, 200, 62, "record and log", "on the head, and in S3"),
        box(580, 290, 200, 62, "the next attempt", "after a lost node"),
        arrow("M490 180C540 180 525 51 576 51"),
        arrow("M680 82V106"),
        arrow("M680 172V196"),
        arrow("M490 196C540 196 525 321 576 321"),
    )
    return svg(790, 362, "How a job ends", *parts)


def svg(width: int, height: int, title: str, *parts: str) -> str:
    """A picture."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{title}</title>\n'
    return f"{head}{STYLE}{''.join(parts)}</svg>\n"


def box(x: int, y: int, width: int, height: int, *lines: str) -> str:
    """A box with a title and lines below it."""
    top, middle = y + height / 2 - (len(lines) - 1) * LINE / 2 + 5, x + width / 2
    classes = ["title", *["small"] * (len(lines) - 1)]
    texts = "".join(
        f'<text class="{kind} middle" x="{middle:g}" y="{top + number * LINE:g}">{line}</text>\n'
        for number, (kind, line) in enumerate(zip(classes, lines, strict=True))
    )
    return f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>\n{texts}'


def zone(x: int, y: int, width: int, height: int, label: str) -> str:
    """An area that contains boxes."""
    area = f'<rect class="zone" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>\n'
    return f'{area}<text class="small" x="{x + 12}" y="{y + 20}">{label}</text>\n'


def arrow(path: str, label: str = "", at: tuple[int, int] = (0, 0)) -> str:
    """An arrow, with a label at a point."""
    text = f'<text class="small middle" x="{at[0]}" y="{at[1]}">{label}</text>\n' if label else ""
    return f'<path d="{path}" marker-end="url(#tip)"/>\n{text}'


if __name__ == "__main__":
    main()
