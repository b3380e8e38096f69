"""A graph of torch_npu alone, in a process with simulated NPUs."""

import torch


def replayed() -> list[list[float]]:
    """Capture a product and a sum on another stream, and replay them with other factors.

    Returns the product and the sum behind each replay: of the captured factor, of another in its
    place, and of a factor that lies elsewhere.
    """
    factor, given = torch.eye(2, device="npu"), torch.ones(1, 2, device="npu")
    total, side, graph = torch.zeros(2, device="npu"), torch.npu.Stream(), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        product = (given @ factor).relu()[0]
        # From here the other stream takes part in the capture.
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            total.add_(product)
        torch.npu.current_stream().wait_stream(side)
    total.zero_()
    found = []
    kept = factor
    for place, scale in ((factor, 1.0), (factor, 2.0), (None, 7.0)):
        if place is None:
            factor = torch.eye(2, device="npu") * scale
        else:
            place.copy_(torch.eye(2) * scale)
        graph.replay()
        found.append([*product.tolist(), *total.tolist()])
    assert kept is not factor, "else nothing would lie elsewhere"
    return found
