"""A sampler that replays scripted replies and remembers what each slot's cache would hold."""

import numpy as np

from jaxagent.rollout.sampler import Sampled, SamplerConfig


class FakeSampler:
    """`reply(transcript ids, turn, key words) -> ids` decides; ids beyond `chunk` a call come in later calls."""

    def __init__(self, reply, *, slots=4, max_context=100, max_turn_tokens=4, buckets=(4, 16), chunk=2, stop_ids=(1,)):
        self.config = SamplerConfig(
            slots=slots,
            max_context=max_context,
            max_turn_tokens=max_turn_tokens,
            extend_buckets=buckets,
            decode_chunk=chunk,
            ready_slots=0,
            stop_ids=stop_ids,
        )
        self._reply = reply
        self._in_flight = {}
        self.cache = [[] for _ in range(slots)]  # what the KV cache holds
        self.pasts = []  # caches at the moment a slot was reset
        self.params = None

    def set_params(self, params):
        self.params = params

    def warm_up(self, temperature):
        pass

    def bucket(self, pending):
        return next((w for w in self.config.extend_buckets if w >= pending), self.config.extend_buckets[-1])

    def __call__(self, request, temperature):
        config = self.config
        columns = config.decode_chunk + 1
        out = np.zeros((config.slots, columns), np.int32)
        counts = np.zeros(config.slots, np.int32)
        stopped = np.zeros(config.slots, bool)
        for slot in range(config.slots):
            if request.reset[slot]:
                self.pasts.append(self.cache[slot])
                self.cache[slot] = []
                self._in_flight.pop(slot, None)
            self.cache[slot] = self.cache[slot] + request.tokens[slot, : request.counts[slot]].tolist()
            if request.sample[slot]:
                self._sample(slot, request, out, counts, stopped)
        return Sampled(out, np.full(out.shape, -0.5, np.float32), counts, stopped, np.int32(columns - 1), np.int32(0))

    def _sample(self, slot, request, out, counts, stopped):
        if slot not in self._in_flight:
            assert request.position[slot] == 0
            self._in_flight[slot] = list(self._reply(self.cache[slot], int(request.keys[slot, 4]), request.keys[slot]))
        left = self._in_flight[slot]
        room = self.config.max_turn_tokens - int(request.position[slot])
        for column in range(min(self.config.decode_chunk + 1, len(left), room)):
            token = left.pop(0)
            if column:
                self.cache[slot] = [*self.cache[slot], int(out[slot, column - 1])]
            out[slot, column] = token
            counts[slot] += 1
            if token in self.config.stop_ids or int(request.position[slot]) + column + 1 >= self.config.max_turn_tokens:
                stopped[slot] = True
                del self._in_flight[slot]
                return
