"""nvitop: the first device, by its Python interface."""

import json

from nvitop import Device

device = Device.all()[0]
works = len(Device.all()) > 0 and isinstance(device.name(), str) and device.processes() == {}
print(json.dumps({"total": device.memory_total() >> 20, "works": works, "refused": ""}))
