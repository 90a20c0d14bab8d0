"""Walks every world of a scenario: is there one that breaks a promise, or one from which no good end can be reached?"""

from __future__ import annotations

from collections import deque

from model.protocol import Protocol, Scenario, World


def unsafe(world: World, scenario: Scenario) -> str:
    """The promise that this world breaks, or ''."""
    row, allowed = world.row, 1 + world.releases
    if world.broken:
        return world.broken
    if scenario.tool != "idempotent" and world.effects > allowed:
        return "a protected call ran more often than allowed"
    if row and row.state == "indeterminate" and not world.excused:
        return "an outcome was called unknown while its holder was alive and well"
    told = any(status == "succeeded" for _, status in world.published)
    if not world.effects and (told or (row and row.state == "completed")):
        return "success without an effect"
    return ""


def good_end(world: World, scenario: Scenario) -> bool:
    """Every event committed and answered, and the last truth of the ledger published and settled."""
    events = set(range(len(scenario.generations)))
    if world.committed != events or any(hand.phase != "idle" for hand in world.hands):
        return False
    row, answered = world.row, {event for event, _ in world.published}
    if answered != events or (row and row.state == "executing"):
        return False
    if row is None or row.state == "released":
        return True
    settled = not world.owed or (row.state == "indeterminate" and world.acknowledged == row.revision)
    return settled and world.told == row.revision


def check(scenario: Scenario, dropped: str = "") -> tuple[str, list[str], int]:
    """Walk everything → (what breaks or '', the steps that lead there, how many states there are)."""
    protocol, start = Protocol(scenario, dropped), World()
    parent: dict[World, tuple[World, str] | None] = {start: None}
    back: dict[World, list[World]] = {}
    todo, ends = deque([start]), []
    while todo:
        world = todo.popleft()
        if why := unsafe(world, scenario):
            return why, _trace(parent, world), len(parent)
        if good_end(world, scenario):
            ends.append(world)
        for label, after in protocol.steps(world):
            back.setdefault(after, []).append(world)
            if after not in parent:
                parent[after] = (world, label)
                todo.append(after)
    stuck = _first_stuck(parent, back, ends)
    return ("no good end can be reached" if stuck else ""), _trace(parent, stuck) if stuck else [], len(parent)


def _first_stuck(
    parent: dict[World, tuple[World, str] | None], back: dict[World, list[World]], ends: list[World]
) -> World | None:
    alive, todo = set(ends), deque(ends)
    while todo:
        for before in back.get(todo.popleft(), ()):
            if before not in alive:
                alive.add(before)
                todo.append(before)
    return next((world for world in parent if world not in alive), None)  # found in the order of their distance


def _trace(parent: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    labels: list[str] = []
    while (step := parent[world]) is not None:
        world, label = step
        labels.append(label)
    return labels[::-1]
