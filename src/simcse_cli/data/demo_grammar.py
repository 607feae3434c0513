"""A small grammar with known meaning: a scene has five parts, each with several wordings.

Two sentences of one scene mean the same whatever their words, and the difference of two scenes is known
exactly. This gives graded pairs and inference labels without annotators; the language is deliberately plain.
Each sentence also names one of four sources, which has nothing to do with the scene. An untrained encoder takes
sentences of one source to be alike; training on unlabelled sentences is enough to correct that.
"""

from dataclasses import dataclass, fields, replace
from random import Random

from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class Verb:
    """A verb in the forms that the sentence patterns need."""

    present: str
    gerund: str
    participle: str


@dataclass(frozen=True)
class Action:
    """An action with its interchangeable verbs and its possible objects."""

    verbs: tuple[Verb, ...]
    objects: tuple[str, ...]


_AGENTS: dict[str, tuple[str, ...]] = {
    "man": ("a man", "a guy"),
    "woman": ("a woman", "a lady"),
    "child": ("a child", "a little kid"),
    "old man": ("an old man", "an elderly man"),
    "doctor": ("a doctor", "a physician"),
    "teacher": ("a teacher", "a schoolteacher"),
    "farmer": ("a farmer", "a grower"),
    "cook": ("a cook", "a chef"),
    "student": ("a student", "a pupil"),
    "soldier": ("a soldier", "a trooper"),
    "sailor": ("a sailor", "a seaman"),
    "artist": ("an artist", "a painter"),
    "lawyer": ("a lawyer", "an attorney"),
    "robot": ("a robot", "a machine"),
}
_OBJECTS: dict[str, tuple[str, ...]] = {
    "guitar": ("a guitar", "an acoustic guitar"),
    "drum": ("a drum", "a big drum"),
    "song": ("a song", "a tune"),
    "violin": ("a violin", "a fiddle"),
    "onion": ("an onion", "a large onion"),
    "bread": ("some bread", "a loaf of bread"),
    "meat": ("some meat", "a piece of meat"),
    "soup": ("some soup", "a pot of soup"),
    "car": ("a car", "an automobile"),
    "bicycle": ("a bicycle", "a bike"),
    "boat": ("a boat", "a small ship"),
    "wall": ("a wall", "a brick wall"),
    "fence": ("a fence", "a wooden fence"),
    "letter": ("a letter", "a handwritten letter"),
    "book": ("a book", "a novel"),
    "newspaper": ("a newspaper", "the daily paper"),
    "ball": ("a ball", "a football"),
    "horse": ("a horse", "a pony"),
    "dog": ("a dog", "a hound"),
    "tree": ("a tree", "a tall tree"),
    "flower": ("a flower", "a fresh flower"),
}
_ACTIONS: dict[str, Action] = {
    "play": Action((Verb("plays", "playing", "played"), Verb("performs on", "performing on", "performed on")),
                   ("guitar", "drum", "violin")),
    "write": Action((Verb("writes", "writing", "written"), Verb("composes", "composing", "composed")),
                    ("song", "letter", "book")),
    "cut": Action((Verb("cuts", "cutting", "cut"), Verb("slices", "slicing", "sliced")),
                  ("onion", "bread", "meat")),
    "cook": Action((Verb("cooks", "cooking", "cooked"), Verb("prepares", "preparing", "prepared")),
                   ("soup", "meat", "onion")),
    "repair": Action((Verb("repairs", "repairing", "repaired"), Verb("fixes", "fixing", "fixed")),
                     ("car", "bicycle", "boat", "fence", "wall")),
    "paint": Action((Verb("paints", "painting", "painted"), Verb("draws", "drawing", "drawn")),
                    ("wall", "boat", "horse", "tree", "flower")),
    "read": Action((Verb("reads", "reading", "read"), Verb("studies", "studying", "studied")),
                   ("book", "newspaper", "letter")),
    "throw": Action((Verb("throws", "throwing", "thrown"), Verb("tosses", "tossing", "tossed")),
                    ("ball", "book", "bread")),
    "wash": Action((Verb("washes", "washing", "washed"), Verb("cleans", "cleaning", "cleaned")),
                   ("car", "dog", "horse", "bicycle")),
    "buy": Action((Verb("buys", "buying", "bought"), Verb("purchases", "purchasing", "purchased")),
                  ("newspaper", "flower", "guitar", "boat", "bread")),
}  # fmt: skip
_PLACES: dict[str, tuple[str, ...]] = {
    "park": ("in the park", "in a public garden"),
    "kitchen": ("in the kitchen", "in a small kitchen"),
    "beach": ("on the beach", "by the sea"),
    "street": ("on the street", "on the road"),
    "forest": ("in the forest", "in the woods"),
    "market": ("at the market", "at a market stall"),
    "station": ("at the station", "on the train platform"),
    "garden": ("behind the house", "in the backyard"),
    "school": ("at the school", "in a classroom"),
    "bridge": ("under the bridge", "below a bridge"),
}
_TIMES: dict[str, tuple[str, ...]] = {
    "morning": ("in the morning", "before noon"),
    "evening": ("in the evening", "at dusk"),
    "night": ("at night", "after midnight"),
    "lunch": ("after lunch", "in the afternoon"),
    "rain": ("in the rain", "during a shower"),
    "winter": ("in winter", "during the cold months"),
}
SOURCES = (
    "the police report says that",
    "dear diary, today I saw that",
    "breaking news on the radio:",
    "this old oil painting shows that",
)
COMPANY = (
    "with a friend",
    "while it snows",
    "for the first time",
    "to earn some money",
    "to please a neighbour",
    "because the radio is broken",
    "before leaving town",
    "for a school project",
)


@dataclass(frozen=True)
class Scene:
    """Who does what to which thing, where and when; each part is a key of the tables above.

    Attributes:
        agent: key of ``_AGENTS``.
        action: key of ``_ACTIONS``.
        thing: key of ``_OBJECTS``, one that the action allows.
        place: key of ``_PLACES``, or None if the sentence names no place.
        time: key of ``_TIMES``, or None.
    """

    agent: str
    action: str
    thing: str
    place: str | None
    time: str | None


WEIGHTS = {"agent": 1.0, "action": 1.5, "thing": 1.25, "place": 0.75, "time": 0.5}
"""Share of each part of a scene in the similarity of two scenes; the sum is 5."""
PARTS = tuple(field.name for field in fields(Scene))


def similarity(first: Scene, second: Scene) -> float:
    """Return the gold score of two scenes, in [0, 5]: the summed weights of their equal parts."""
    return sum(weight for part, weight in WEIGHTS.items() if getattr(first, part) == getattr(second, part))


def draw_scene(rng: Random) -> Scene:
    action = rng.choice(tuple(_ACTIONS))
    return Scene(
        agent=rng.choice(tuple(_AGENTS)),
        action=action,
        thing=rng.choice(_ACTIONS[action].objects),
        place=rng.choice(tuple(_PLACES)),
        time=rng.choice(tuple(_TIMES)),
    )


def vary(scene: Scene, parts: list[str], rng: Random) -> Scene:
    """Return the scene with each of ``parts`` changed.

    If a new action does not go with the thing, the thing changes too.
    """
    tables = {"agent": _AGENTS, "place": _PLACES, "time": _TIMES}
    changes = {
        part: _another(tuple(tables[part]), getattr(scene, part), rng) for part in tables if part in parts
    }
    action = scene.action
    if "action" in parts:
        keeping_thing = tuple(name for name in _ACTIONS if scene.thing in _ACTIONS[name].objects)
        choices = tuple(_ACTIONS) if "thing" in parts or keeping_thing == (action,) else keeping_thing
        action = _another(choices, action, rng)
    things = _ACTIONS[action].objects
    changes_thing = "thing" in parts or scene.thing not in things
    thing = _another(things, scene.thing, rng) if changes_thing else scene.thing
    return replace(scene, action=action, thing=thing, **changes)


def _another(choices: tuple[str, ...], current: str | None, rng: Random) -> str:
    return rng.choice([choice for choice in choices if choice != current])


def phrase(scene: Scene, rng: Random, *, negated: bool = False, extra: str = "") -> str:
    """Return a sentence in which a source describes a scene or denies it.

    Neither the source nor ``extra``, which is appended, is part of the scene.
    """
    agent, thing = rng.choice(_AGENTS[scene.agent]), rng.choice(_OBJECTS[scene.thing])
    verb = rng.choice(_ACTIONS[scene.action].verbs)
    where = rng.choice(_PLACES[scene.place]) if scene.place else ""
    when = rng.choice(_TIMES[scene.time]) if scene.time else ""
    if negated:
        patterns = [
            f"{agent} is not {verb.gerund} {thing} {where} {when}",
            f"nobody is {verb.gerund} {thing} {where}",
        ]
    else:
        patterns = [
            f"{agent} is {verb.gerund} {thing} {where} {when}",
            f"{agent} {verb.present} {thing} {where} {when}",
            f"{when} {agent} is {verb.gerund} {thing} {where}",
            f"{thing} is being {verb.participle} by {agent} {where} {when}",
            f"there is {agent} {verb.gerund} {thing} {where} {when}",
            f"{where} {agent} {verb.present} {thing} {when}",
        ]
    text = " ".join(f"{rng.choice(SOURCES)} {rng.choice(patterns)} {extra}".split())
    return text[0].upper() + text[1:] + "."


MAX_DEMO_SIZE = 100_000
"""The largest number of each kind for which the grammar never runs out of new sentences."""


@dataclass(frozen=True)
class DemoSizes:
    """The size of the demo corpus."""

    sentences: int = setting(4000, "Unlabelled sentences.", min=1, max=MAX_DEMO_SIZE)
    triplets: int = setting(2000, "Triplets, and three NLI rows of each.", min=1, max=MAX_DEMO_SIZE)
    pairs: int = setting(2000, "Graded pairs of all splits.", min=4, max=MAX_DEMO_SIZE)
    documents: int = setting(200, "Short stories, in document order.", min=1, max=10_000)
