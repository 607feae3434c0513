"""A small grammar with known meaning: a scene has five parts, each with several wordings.

Two sentences of one scene mean the same whatever their words, and the difference of two scenes is
known exactly. This gives graded pairs and inference labels without annotators; the language is
deliberately plain. Each sentence also names one of four sources, which has nothing to do with the
scene. An untrained encoder takes sentences of one source to be alike; training on unlabelled
sentences is enough to correct that.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cache
from random import Random
from typing import Any

from simcse_cli.files.resources import resource
from simcse_cli.files.schema import parse_yaml
from simcse_cli.settings.declare import setting


@cache
def grammar() -> dict[str, Any]:
    """Return the words of the generated corpus, by the top-level keys of their YAML file.

    Five keys are the parts of a scene, each with its wordings. ``sources`` has phrases for the
    source of a sentence, such as a diary. ``company`` has phrases that can be added to a sentence.
    """
    return dict(parse_yaml(resource("demo_grammar.yaml"), "demo_grammar.yaml"))


@dataclass(frozen=True)
class Scene:
    """Who does what to which thing, where and when, as keys of ``grammar()``.

    A place or time is None where the sentence does not tell it.
    """

    agent: str
    action: str
    thing: str
    place: str | None
    time: str | None


WEIGHTS = {"agent": 1.0, "action": 1.5, "thing": 1.25, "place": 0.75, "time": 0.5}
"""Points of each part in the similarity of two scenes; the sum is 5."""
PARTS = tuple(field.name for field in fields(Scene))


def similarity(first: Scene, second: Scene) -> float:
    """Return the gold score of two scenes, in [0, 5]: the summed weights of their equal parts."""
    score = 0.0
    for part, weight in WEIGHTS.items():
        if getattr(first, part) == getattr(second, part):
            score += weight
    return score


def draw_scene(rng: Random) -> Scene:
    words = grammar()
    action = rng.choice(tuple(words["action"]))
    agent = rng.choice(tuple(words["agent"]))
    thing = rng.choice(words["action"][action]["things"])
    place = rng.choice(tuple(words["place"]))
    time = rng.choice(tuple(words["time"]))
    return Scene(agent, action, thing, place, time)


def vary(scene: Scene, parts: list[str], rng: Random) -> Scene:
    """Return the scene with each of ``parts`` changed.

    The thing also changes if the old one does not go with the new action.
    """
    changes: dict[str, str] = {}
    for part in ("agent", "place", "time"):
        if part in parts:
            changes[part] = _another(grammar()[part], getattr(scene, part), rng)
    # If the thing is to stay, prefer another action that goes with it.
    actions = grammar()["action"]
    action = scene.action
    if "action" in parts:
        choices = [name for name in actions if scene.thing in actions[name]["things"]]
        if "thing" in parts or choices == [action]:
            choices = list(actions)
        action = _another(choices, action, rng)
    things = actions[action]["things"]
    thing = scene.thing
    if "thing" in parts or thing not in things:
        thing = _another(things, thing, rng)
    return replace(scene, action=action, thing=thing, **changes)


def _another(choices: Iterable[str], current: str | None, rng: Random) -> str:
    return rng.choice([choice for choice in choices if choice != current])


def phrase(scene: Scene, rng: Random, *, negated: bool = False, extra: str = "") -> str:
    """Return a sentence in which a source describes or denies a scene.

    The source, such as a diary, comes first, and the phrase ``extra`` at the end. Neither is a part
    of the scene.
    """
    words = grammar()
    agent = rng.choice(words["agent"][scene.agent])
    thing = rng.choice(words["thing"][scene.thing])
    present, gerund, participle = rng.choice(words["action"][scene.action]["verbs"])
    where = rng.choice(words["place"][scene.place]) if scene.place else ""
    when = rng.choice(words["time"][scene.time]) if scene.time else ""

    # In each list the patterns mean the same, except that "nobody" leaves out agent and time.
    if negated:
        patterns = [
            f"{agent} is not {gerund} {thing} {where} {when}",
            f"nobody is {gerund} {thing} {where}",
        ]
    else:
        patterns = [
            f"{agent} is {gerund} {thing} {where} {when}",
            f"{agent} {present} {thing} {where} {when}",
            f"{when} {agent} is {gerund} {thing} {where}",
            f"{thing} is being {participle} by {agent} {where} {when}",
            f"there is {agent} {gerund} {thing} {where} {when}",
            f"{where} {agent} {present} {thing} {when}",
        ]
    text = " ".join(f"{rng.choice(words['sources'])} {rng.choice(patterns)} {extra}".split())
    return text[0].upper() + text[1:] + "."


MAX_DEMO_SIZE = 100_000
"""The largest number of each kind for which the grammar never runs out of new sentences."""


@dataclass(frozen=True)
class DemoSizes:
    sentences: int = setting(4000, "Unlabelled sentences.", min=1, max=MAX_DEMO_SIZE)
    triplets: int = setting(2000, "Triplets, and three NLI rows of each.", min=1, max=MAX_DEMO_SIZE)
    pairs: int = setting(2000, "Graded pairs of all splits.", min=4, max=MAX_DEMO_SIZE)
    documents: int = setting(200, "Short stories, in document order.", min=1, max=10_000)
