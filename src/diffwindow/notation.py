"""Which attention each role and layer of a model gets, in the notation of the paper.

    Enc(AW)-Cr(AW,Seg)-Dec(MW)      the paper's best model: windows in the first half of the layers
    Enc(AW,Seg=3)@1-2-Enc(MW)@3     segments of three keys in layers 1 and 2, another kind in layer 3
    Enc(AW,Phr)                     windows of whole phrases, whose ends are given with the text
    Enc(AW,Tree)                    windows of whole phrases, whose ends are learned, the same for all layers
    Dec(MW,Exact)@all               all layers, without the double count of the paper's window
    Enc(MW,Norm)                    weights divided by their sum: softmax(s + log M)
    Dec(MW,Norm,Sink=4)             the first four keys are always visible: M = 1 there
    Enc(AW,Dim=8)                   boundaries with a head width of 8, smaller than that of the scores
    Dec(MW,Gate)                    a gate g per head, 0 at the start: softmax(s) ⊙ (1 + g(M − 1))
    Enc(AW,Dist)                    a window and relative positions in one attention
    Enc(Rel)-Cr(Gauss=10)           baselines: Shaw in the encoder, Luong's local-p in cross-attention
    Global                          the plain Transformer

A term is `Role(Kind[=number][,Option[=number]…])[@layers]`; a role or layer that no term names is global.
"""

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

from diffwindow.attention.base import ROLES, Role
from diffwindow.attention.kinds import GLOBAL, KINDS, OPTIONS, Attention
from diffwindow.checks import check_whole
from diffwindow.messages import check_choice, did_you_mean, quote

__all__ = [
    "GLOBAL",
    "KINDS",
    "OPTIONS",
    "ROLES",
    "Attention",
    "NotationError",
    "Plan",
    "Role",
    "Term",
    "parse_attention",
]


@dataclass(frozen=True)
class Term:
    """An attention given to some layers, counted from 1, of a role; None is the first half, rounded up."""

    role: Role
    attention: Attention
    layers: tuple[int, int] | Literal["all"] | None = None

    def __post_init__(self) -> None:
        """Raise unless the layers are named as they should be."""
        check_choice("role", self.role, ROLES)
        if not isinstance(self.attention, Attention):
            raise TypeError(
                f"attention={quote(self.attention)} is not an Attention; parse_attention reads one from text"
            )
        if self.layers is None or self.layers == "all":
            return
        layers = tuple(self.layers) if isinstance(self.layers, list) else self.layers
        whole = isinstance(layers, tuple) and len(layers) == 2 and all(type(one) is int for one in layers)
        if not (whole and 1 <= layers[0] <= layers[1]):
            raise ValueError(f'layers={layers!r}: give the first and the last layer, from 1, or "all"')
        object.__setattr__(self, "layers", layers)

    def layer_range(self, num_layers: int) -> range:
        """Return the layers, from 1, that this term names in a stack of `num_layers`."""
        if self.layers is None:
            return range(1, (num_layers + 1) // 2 + 1)
        first, last = (1, num_layers) if self.layers == "all" else self.layers
        return range(first, last + 1)

    def __str__(self) -> str:
        layers = ""
        if self.layers is not None:
            layers = "@all" if self.layers == "all" else "@" + "-".join(map(str, dict.fromkeys(self.layers)))
        return f"{self.role}({self.attention}){layers}"


@dataclass(frozen=True)
class Plan:
    """The terms of a notation, in canonical order; `str(plan)` is the canonical text.

    >>> plan = parse_attention("Dec(MW) - Enc(AW, Seg=5)@1-2")
    >>> str(plan)
    'Enc(AW,Seg)@1-2-Dec(MW)'
    >>> [str(attention) for attention in plan.attentions("Dec", num_layers=3)]
    ['MW', 'MW', 'Global']
    """

    terms: tuple[Term, ...] = ()

    def __post_init__(self) -> None:
        """Raise unless the terms are a tuple of them."""
        if not (isinstance(self.terms, tuple) and all(isinstance(term, Term) for term in self.terms)):
            raise TypeError(
                f"terms={quote(self.terms)} is not a tuple of Term; parse_attention reads a plan from text"
            )

    def attentions(self, role: Role, num_layers: int) -> tuple[Attention, ...]:
        """Return the attention of each layer of a role."""
        check_choice("role", role, ROLES)
        check_whole("num_layers", num_layers)
        attentions = [GLOBAL] * num_layers
        for term in (term for term in self.terms if term.role == role):
            for layer in term.layer_range(num_layers):
                if layer > num_layers:
                    raise ValueError(
                        f"{term} names layer {layer}, but the model has {num_layers} {role} layers"
                    )
                if attentions[layer - 1] is not GLOBAL:
                    raise ValueError(f"{self} gives {role} layer {layer} two attentions; name layers with @")
                attentions[layer - 1] = term.attention
        return tuple(attentions)

    def __str__(self) -> str:
        return "-".join(map(str, self.terms)) or GLOBAL.kind


class NotationError(ValueError):
    """A notation that cannot be read: what is wrong, the text, and a caret under the place."""

    def __init__(self, reason: str, text: str, position: int) -> None:
        super().__init__(f"{reason}\n  {text}\n  {' ' * position}^")


def parse_attention(text: str) -> Plan:
    """Read a notation; a mistake raises a NotationError with a caret under it and a suggestion."""
    if not isinstance(text, str):
        raise TypeError(f"a notation is a str, as 'Enc(AW)', not {quote(text)}")
    if text.strip() == GLOBAL.kind:
        return Plan()
    scanner = _Scanner(text)
    terms = [_term(scanner)]
    while not scanner.at_end():
        scanner.expect("-", "between two terms")
        start = scanner.position()
        term = _term(scanner)
        for other in terms:
            if term.role == other.role and _overlap(term, other):
                scanner.fail(f"{term} and {other} share a layer; name other layers with @", at=start)
        terms.append(term)
    return Plan(tuple(sorted(terms, key=lambda term: (ROLES.index(term.role), term.layer_range(1).start))))


class _Scanner:
    """Reads words, numbers and signs off a text, and fails with a caret at where it stands."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.offset = 0

    def position(self) -> int:
        """Skip white space and give the place of what comes next."""
        while self.text[self.offset : self.offset + 1].isspace():
            self.offset += 1
        return self.offset

    def at_end(self) -> bool:
        return self.position() == len(self.text)

    def take(self, pattern: str) -> str | None:
        match = re.compile(pattern).match(self.text, self.position())
        if match is None:
            return None
        self.offset = match.end()
        return match.group()

    def expect(self, sign: str, where: str) -> None:
        if self.take(re.escape(sign)) is None:
            self.fail(f'expected "{sign}" {where}')

    def number(self, of: str) -> int:
        start = self.position()
        digits = self.take(r"\d+")
        if digits is None:
            self.fail(f"expected a whole number for {of}")
        if int(digits) == 0:
            self.fail(f"{of} is 0, but counts from 1", at=start)
        return int(digits)

    def name(self, what: str, known: Iterable[str]) -> str:
        start, known = self.position(), list(known)
        word = self.take(r"\w+") or ""
        if word in known:
            return word
        said = f"{word!r} is not {what}" if word else f"expected {what}"
        self.fail(f"{said}; {did_you_mean(word, known)}", at=start)

    def fail(self, reason: str, at: int | None = None) -> NoReturn:
        raise NotationError(reason, self.text, self.position() if at is None else at)


def _term(scanner: _Scanner) -> Term:
    role: Role = scanner.name("a role", ROLES)  # type: ignore[assignment]
    scanner.expect("(", f"after {role}")
    attention = _attention(scanner, role)
    options: list[str] = []
    while scanner.take(","):
        attention = _option(scanner, role, attention, options)
    scanner.expect(")", f"after {role}({attention}")
    return Term(role, attention, _layers(scanner) if scanner.take("@") else None)


def _attention(scanner: _Scanner, role: Role) -> Attention:
    start = scanner.position()
    name = scanner.name("an attention", (name for name in KINDS if name != GLOBAL.kind))
    kind = KINDS[name]
    if role not in kind.roles:
        roles = " and ".join(kind.roles)
        scanner.fail(f"{name} is {kind.meaning}, for {roles} and not for {role}", at=start)
    size = kind.size
    if size is not None and scanner.take("="):
        size = scanner.number(of=name)
    return Attention(name, size)


def _option(scanner: _Scanner, role: Role, attention: Attention, before: list[str]) -> Attention:
    """Read an option into an attention, and add its name to those before it."""
    start = scanner.position()
    option = OPTIONS[scanner.name("an option", OPTIONS)]
    name = option.name
    for other in before:
        if OPTIONS[other].argument == option.argument:
            problem = "is there twice" if other == name else f"and {other} exclude each other"
            scanner.fail(f"{name} {problem}", at=start)
    before.append(name)
    if name not in KINDS[attention.kind].options:
        scanner.fail(f"{name} means {option.meaning}, which {attention.kind} does not have", at=start)
    if role not in option.roles:
        roles = " and ".join(option.roles)
        scanner.fail(f"{name} means {option.meaning}, for {roles} and not for {role}", at=start)
    value = option.written
    if value is None:
        scanner.expect("=", f"and a number after {name}, as {name}=8")
        value = scanner.number(of=name)
    elif option.takes_number and scanner.take("="):
        value = scanner.number(of=name)
    if name == "Seg" and role == "Dec" and value > 1:
        warnings.warn(
            "the paper has no segments in decoder self-attention, where the last one is unfinished; "
            "here they only see what the query sees",
            stacklevel=4,
        )
    return replace(attention, **{option.argument: value})


def _layers(scanner: _Scanner) -> tuple[int, int] | Literal["all"]:
    if scanner.take("all"):
        return "all"
    start = scanner.position()
    first = scanner.number(of="a layer (or @all)")
    # A dash starts a range only before a digit; otherwise it starts the next term.
    last = scanner.number(of="a layer") if scanner.take(r"-(?=\s*\d)") else first
    if last < first:
        scanner.fail(f"layers {first}-{last} run backwards", at=start)
    return first, last


def _overlap(a: Term, b: Term) -> bool:
    """Tell whether two terms of a role share a layer in every stack; Plan.attentions knows the stack."""
    if isinstance(a.layers, tuple) and isinstance(b.layers, tuple):
        return a.layers[0] <= b.layers[1] and b.layers[0] <= a.layers[1]
    # "all" and the first half both hold layer 1, and "all" holds every other.
    return "all" in (a.layers, b.layers) or a.layers == b.layers or 1 in (a.layers or b.layers or ())
