import abc


class Client(abc.ABC):
    @abc.abstractmethod
    async def get_native_response(self): ...
