# SPDX-License-Identifier: Apache-2.0
"""Elements of a domain's XML: found, read and written, with errors that a person can act upon."""

from __future__ import annotations

from importlib import resources
from uuid import UUID

from lxml import etree

from kvgpu.host.errors import DomainError
from kvgpu.host.units import GIB, KIB, MIB

NAMESPACE = "https://kvgpu.org/xmlns/vm/1"
_NS = {"kvgpu": NAMESPACE}
# libvirt's XML is trusted as far as its author is root; entities are never needed all the same.
_PARSER = etree.XMLParser(remove_blank_text=True, remove_comments=True, resolve_entities=False)
# For what is edited: comments, CDATA and white space may mean something to whoever wrote them.
_KEEPING_PARSER = etree.XMLParser(strip_cdata=False, resolve_entities=False)
_INDENT = "  "  # as libvirt writes a domain

_UNITS = {"b": 1, "bytes": 1, "kb": 1000, "k": KIB, "kib": KIB, "mb": 1000**2, "m": MIB}
_UNITS |= {"mib": MIB, "gb": 1000**3, "g": GIB, "gib": GIB}


def read_bytes(element: etree._Element, default_unit: str = "bytes") -> int:
    """Return a size element in bytes; libvirt itself writes units other than those it was given.

    Raises DomainError.
    """
    unit = element.get("unit", default_unit).lower()
    if unit not in _UNITS:
        raise DomainError(
            f"<{etree.QName(element).localname}>: unknown unit {unit!r}",
            hint=f"use one of {', '.join(_UNITS)}",
        )
    return read_integer(element) * _UNITS[unit]


def read_integer(element: etree._Element) -> int:
    """Return the number that is an element's text. Raises DomainError."""
    text = (element.text or "").strip()
    if not text.isdecimal():
        raise DomainError(
            f"<{etree.QName(element).localname}>: {text!r} is not a number",
            hint="sudo virsh edit the domain, or make its XML with `kvgpu vm xml --from`",
        )
    return int(text)


def read_uuid(domain: etree._Element) -> UUID:
    """Return a domain's UUID. Raises DomainError."""
    text = find(domain, "uuid").text or ""
    try:
        return UUID(text)
    except ValueError as error:
        raise DomainError(
            f"<uuid>: {text!r} is not a UUID", hint="give the XML as `virsh dumpxml` prints it"
        ) from error


def template(name: str) -> etree._Element:
    """Return a file of xml_templates/."""
    return parse((resources.files("kvgpu.xml_templates") / name).read_text())


def parse(text: str) -> etree._Element:
    """Return the root of an XML text, elements and their text alone. Raises DomainError."""
    return _parse(text, _PARSER)


def parse_keeping_all(text: str) -> etree._Element:
    """Return the root of an XML text that is to be edited. Raises DomainError."""
    return _parse(text, _KEEPING_PARSER)


def _parse(text: str, parser: etree.XMLParser) -> etree._Element:
    try:
        return etree.fromstring(text.encode(), parser)
    except etree.XMLSyntaxError as error:
        raise DomainError(
            f"not a domain XML: {error}", hint="give it as `virsh dumpxml` prints it"
        ) from error


def elements(root: etree._Element, path: str) -> list[etree._Element]:
    """Return the elements at an XPath; kvgpu's namespace is `kvgpu:`."""
    found = root.xpath(path, namespaces=_NS)
    return [e for e in found if isinstance(e, etree._Element)] if isinstance(found, list) else []


def find(root: etree._Element, path: str) -> etree._Element:
    """Return the first element at a path. Raises DomainError if there is none."""
    found = root.find(path, namespaces=_NS)
    if found is None:
        raise DomainError(f"no <{path}> in <{root.tag!s}>", hint="is this a complete domain?")
    return found


def set_text(root: etree._Element, path: str, text: str) -> None:
    find(root, path).text = text


def append(parent: etree._Element, element: etree._Element) -> None:
    """Add an element as the last one, on lines of its own; what is there stays as it is written."""
    if len(parent):
        insert_after(parent[-1], element)
        return
    depth = len(list(parent.iterancestors()))
    etree.indent(element, _INDENT, level=depth + 1)
    parent.append(element)
    parent.text = (parent.text or "").rstrip() + _line(depth + 1)
    element.tail = _line(depth)


def insert_after(sibling: etree._Element, element: etree._Element) -> None:
    """Add an element below its sibling, like `append`."""
    depth = len(list(sibling.iterancestors()))
    etree.indent(element, _INDENT, level=depth)
    text = sibling.tail
    sibling.addnext(element)
    sibling.tail, element.tail = _line(depth), text


def remove(element: etree._Element) -> None:
    """Take an element out, and the line break before it."""
    parent, previous = element.getparent(), element.getprevious()
    assert parent is not None
    text = element.tail or ""
    parent.remove(element)
    if previous is None:
        parent.text = (parent.text or "").rstrip() + text
    else:
        previous.tail = (previous.tail or "").rstrip() + text


def _line(depth: int) -> str:
    return "\n" + _INDENT * depth


def to_text(root: etree._Element) -> str:
    """Return a document as it was parsed, but for quotes and the like."""
    nodes = [*reversed(list(root.itersiblings(preceding=True))), root, *root.itersiblings()]
    texts = [etree.tostring(node, encoding="unicode", with_tail=False) for node in nodes]
    return "".join(f"{text}\n" for text in texts)


def to_indented_text(root: etree._Element) -> str:
    """Return an element, each child on a line of its own."""
    etree.indent(root, _INDENT)
    return etree.tostring(root, encoding="unicode", pretty_print=True)
