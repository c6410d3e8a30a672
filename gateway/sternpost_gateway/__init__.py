"""
The gateway: an OpenAI-compatible proxy that keeps prompts stable and sends them where their KV is.

A request flows once through frozen values, one stage a module:

    admit -> receive -> identify -> canonicalize -> segment -> plan
          -> route -> compose -> forward -> relay -> record

Bytes are relayed as they come. Where a stage wants another body it splices into the original bytes, so that
nothing which it does not name can change. `app.create_app` is the only place where parts are put together.
"""
