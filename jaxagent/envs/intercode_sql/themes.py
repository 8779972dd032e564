"""What generated databases are about: things, their attributes, and the several names that a schema may give each.

Questions speak in concepts (`dog`, `age`); a schema calls them by one of the names, drawn for each task. So names must
be discovered or guessed.
"""

import dataclasses

NUMBERS = tuple(range(10, 100, 10))  # all values of numeric columns
MAX_NAMES = 3


@dataclasses.dataclass(frozen=True)
class Attribute:
    """A column: `names[0]` is the most obvious name. Values: texts to draw from (a label's are unique), or numbers."""

    concept: str
    names: tuple[str, ...]
    kind: str  # label | category | number
    values: tuple[str, ...] | tuple[int, ...] = NUMBERS


@dataclasses.dataclass(frozen=True)
class Thing:
    """A table: its first attribute is the label."""

    concept: str
    plural: str
    names: tuple[str, ...]
    attributes: tuple[Attribute, ...]

    def of_kind(self, kind: str) -> list[Attribute]:
        """The attributes of one kind."""
        return [attribute for attribute in self.attributes if attribute.kind == kind]


@dataclasses.dataclass(frozen=True)
class Theme:
    """Two linked things (a child has one parent) and one that has nothing to do with them."""

    parent: Thing
    child: Thing
    link: tuple[str, ...]  # names of the child's column that holds the parent's id
    other: Thing


def _label(values: str, *names: str) -> Attribute:
    return Attribute("name", names, "label", tuple(values.split()))


def _category(concept: str, values: str, *names: str) -> Attribute:
    return Attribute(concept, names, "category", tuple(values.split()))


def _number(concept: str, *names: str) -> Attribute:
    return Attribute(concept, names, "number")


_PEOPLE = "Ada Bea Carl Dora Emil Fay Gus Hana Ivo Jo Kim Lea"
_CITIES = "Oslo Rome Lima Kyiv"
THEMES = (
    Theme(
        parent=Thing(
            "owner",
            "owners",
            ("owner", "owners", "person"),
            (
                _label(_PEOPLE, "name", "full_name", "owner_name"),
                _category("city", _CITIES, "city", "town", "home"),
                _number("income", "income", "salary", "earnings"),
            ),
        ),
        child=Thing(
            "dog",
            "dogs",
            ("dog", "dogs", "hound"),
            (
                _label(
                    "Rex Bob Fido Luna Milo Nala Otto Pip Rolf Suki Toby Uma Vito Wanda", "name", "dog_name", "called"
                ),
                _category("colour", "black white brown grey", "colour", "coat", "fur"),
                _number("age", "age", "years", "age_months"),
                _number("weight", "weight", "mass", "kilos"),
            ),
        ),
        link=("owner_id", "keeper", "owner_ref"),
        other=Thing("visit", "visits", ("visit", "visits", "appointment"), (_label("V1 V2 V3", "code", "ref", "no"),)),
    ),
    Theme(
        parent=Thing(
            "teacher",
            "teachers",
            ("teacher", "teachers", "staff"),
            (
                _label(_PEOPLE, "name", "teacher_name", "label"),
                _category("subject", "maths music art sport", "subject", "field", "topic"),
                _number("experience", "experience", "seniority", "service"),
            ),
        ),
        child=Thing(
            "course",
            "courses",
            ("course", "courses", "class"),
            (
                _label("C10 C11 C12 C13 C14 C15 C16 C17 C18 C19 C20 C21 C22 C23", "title", "name", "course_name"),
                _category("day", "Monday Tuesday Friday Sunday", "day", "weekday", "held_on"),
                _number("size", "size", "seats", "capacity"),
                _number("hours", "hours", "duration", "length"),
            ),
        ),
        link=("teacher_id", "taught_by", "lecturer"),
        other=Thing("room", "rooms", ("room", "rooms", "hall"), (_label("R1 R2 R3", "code", "door", "sign"),)),
    ),
    Theme(
        parent=Thing(
            "author",
            "authors",
            ("author", "authors", "writer"),
            (
                _label(_PEOPLE, "name", "pen_name", "author_name"),
                _category("country", "Peru Chad Iran Cuba", "country", "nation", "origin"),
                _number("prizes", "prizes", "awards", "medals"),
            ),
        ),
        child=Thing(
            "book",
            "books",
            ("book", "books", "volume"),
            (
                _label("B10 B11 B12 B13 B14 B15 B16 B17 B18 B19 B20 B21 B22 B23", "title", "book_title", "heading"),
                _category("genre", "crime drama poetry travel", "genre", "style", "category"),
                _number("price", "price", "cost", "amount"),
                _number("pages", "pages", "page_count", "extent"),
            ),
        ),
        link=("author_id", "written_by", "creator"),
        other=Thing(
            "branch", "branches", ("branch", "branches", "site"), (_label("S1 S2 S3", "code", "place", "spot"),)
        ),
    ),
    Theme(
        parent=Thing(
            "harbour",
            "harbours",
            ("harbour", "harbours", "port"),
            (
                _label("Aden Bari Cork Doha Genoa Izmir Kiel Lagos Nice Riga", "name", "port_name", "title"),
                _category("coast", "north south east west", "coast", "side", "shore"),
                _number("depth", "depth", "draught", "metres"),
            ),
        ),
        child=Thing(
            "ship",
            "ships",
            ("ship", "ships", "vessel"),
            (
                _label(
                    "Argo Beagle Cutty Dart Endeavour Fram Gipsy Hood Iona Jason Kon Lark Maru Nina",
                    "name",
                    "ship_name",
                    "label",
                ),
                _category("flag", "Malta Panama Greece Japan", "flag", "registry", "nation"),
                _number("speed", "speed", "knots", "pace"),
                _number("crew", "crew", "hands", "sailors"),
            ),
        ),
        link=("harbour_id", "home_port", "based_at"),
        other=Thing("crane", "cranes", ("crane", "cranes", "hoist"), (_label("K1 K2 K3", "code", "tag", "mark"),)),
    ),
)
