"""Checks of what users pass in. Each raises ValueError with what, which value and which rule."""
import ipaddress
import re

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*\.?\Z")
INT_MAX = 2**31 - 1


def non_negative_int(name, value):
    """An int from 0 to 2^31-1; True is not one."""
    if type(value) is not int or not 0 <= value <= INT_MAX:
        raise ValueError(f"{name} is {value!r}; it must be an int from 0 to {INT_MAX}")
    return value


def positive_int(name, value):
    if type(value) is not int or not 1 <= value <= INT_MAX:
        raise ValueError(f"{name} is {value!r}; it must be an int from 1 to {INT_MAX}")
    return value


def number_text(name, value):
    """A natural number, as an int or as its digits; returns the int."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value):
        value = int(value)
    return non_negative_int(name, value)


def port(name, value):
    number = number_text(name, value)
    if not 1 <= number <= 65535:
        raise ValueError(f"{name} is {value!r}; it must be a port from 1 to 65535")
    return number


def host(name, value):
    """An IPv4 or IPv6 address, the latter with or without brackets, or a host name; returned without brackets."""
    if isinstance(value, str):
        bare = value[1:-1] if value.startswith("[") and value.endswith("]") else value
        try:
            return str(ipaddress.ip_address(bare))
        except ValueError:
            # Nothing that looks like an address may pass as a name: 10.0.0.256 is a typing error.
            if _HOST_NAME.match(bare) and not re.fullmatch(r"[0-9.]+", bare):
                return bare
    raise ValueError(f"{name} is {value!r}; it must be an IPv4 or IPv6 address or a host name")


def host_port(address, number):
    return f"[{address}]:{number}" if ":" in address else f"{address}:{number}"
