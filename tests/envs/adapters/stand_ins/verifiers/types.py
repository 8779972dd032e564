import types


class ToolCall(types.SimpleNamespace):
    pass


class ResponseMessage(types.SimpleNamespace):
    pass


class Response(types.SimpleNamespace):
    pass
