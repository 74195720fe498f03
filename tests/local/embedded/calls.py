"""Requests to any Pub/Sub, with Google's message classes."""

import grpc
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types

METHODS = {
    "Publisher": {
        "CreateTopic": (types.Topic, types.Topic),
        "GetTopic": (types.GetTopicRequest, types.Topic),
        "DeleteTopic": (types.DeleteTopicRequest, Empty),
        "ListTopics": (types.ListTopicsRequest, types.ListTopicsResponse),
        "ListTopicSubscriptions": (types.ListTopicSubscriptionsRequest, types.ListTopicSubscriptionsResponse),
        "Publish": (types.PublishRequest, types.PublishResponse),
    },
    "Subscriber": {
        "CreateSubscription": (types.Subscription, types.Subscription),
        "GetSubscription": (types.GetSubscriptionRequest, types.Subscription),
        "UpdateSubscription": (types.UpdateSubscriptionRequest, types.Subscription),
        "DeleteSubscription": (types.DeleteSubscriptionRequest, Empty),
        "ListSubscriptions": (types.ListSubscriptionsRequest, types.ListSubscriptionsResponse),
        "Pull": (types.PullRequest, types.PullResponse),
        "Acknowledge": (types.AcknowledgeRequest, Empty),
        "ModifyAckDeadline": (types.ModifyAckDeadlineRequest, Empty),
        "Seek": (types.SeekRequest, types.SeekResponse),
    },
    "SchemaService": {
        "CreateSchema": (types.CreateSchemaRequest, types.Schema),
        "CommitSchema": (types.CommitSchemaRequest, types.Schema),
        "RollbackSchema": (types.RollbackSchemaRequest, types.Schema),
        "GetSchema": (types.GetSchemaRequest, types.Schema),
        "DeleteSchema": (types.DeleteSchemaRequest, Empty),
        "DeleteSchemaRevision": (types.DeleteSchemaRevisionRequest, types.Schema),
        "ListSchemas": (types.ListSchemasRequest, types.ListSchemasResponse),
        "ListSchemaRevisions": (types.ListSchemaRevisionsRequest, types.ListSchemaRevisionsResponse),
        "ValidateSchema": (types.ValidateSchemaRequest, types.ValidateSchemaResponse),
        "ValidateMessage": (types.ValidateMessageRequest, types.ValidateMessageResponse),
    },
}


class Calls:
    """Calls the methods of a server.

    Args:
        address: the server's address.
    """

    def __init__(self, address):
        self._channel = grpc.insecure_channel(address)

    def ask(self, name, /, **fields):
        """Returns the answer to a request."""
        (service,) = (each for each, methods in METHODS.items() if name in methods)
        request, response = METHODS[service][name]
        stub = self._channel.unary_unary(
            f"/google.pubsub.v1.{service}/{name}",
            request_serializer=lambda message: type(message).serialize(message),
            response_deserializer=response.pb().FromString if hasattr(response, "pb") else response.FromString,
        )
        return stub(request(**fields), timeout=30)

    def code(self, name, /, **fields):
        """Returns the status with which a request is answered."""
        try:
            self.ask(name, **fields)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK
