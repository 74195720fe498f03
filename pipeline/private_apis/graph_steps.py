"""Lists the steps of a pipeline, with the properties that Dataflow compares when it updates a job in place.

Relies on, in ``apache-beam``:

- ``Pipeline.to_runner_api`` in apache_beam/pipeline.py, for internal use, returns the pipeline as a protobuf message.
  With ``return_context``, it also returns the context that resolves the ids of coders.
- ``Coder.__repr__`` and its overrides in apache_beam/coders/coders.py name the coder and its component coders.
"""

from apache_beam.pipeline import Pipeline


def steps_of(pipeline: Pipeline) -> dict[str, str]:
    """Returns the coders of every step's outputs, by the step's label."""
    proto, context = pipeline.to_runner_api(return_context=True)
    steps = {}
    for id_, transform in proto.components.transforms.items():
        if id_ not in proto.root_transform_ids:
            coder_ids = [proto.components.pcollections[output].coder_id for output in transform.outputs.values()]
            steps[transform.unique_name] = ", ".join(
                sorted(str(context.coders.get_by_id(coder_id)) for coder_id in coder_ids)
            )
    return dict(sorted(steps.items()))
