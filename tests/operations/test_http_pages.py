def test_x(broker): 
    assert broker.get_json("/ready") == {"status":"ready"}
    print(broker.get_json("/health"), sorted({k[0] for k in broker.metrics()}))
def test_y(new_broker,topic): 
    b=new_broker({"limits.connections":5}); b.kill(); b.restart(); b.restart(); print(b.output,b.log, topic, b.resident_bytes)
    assert 0
