from mq_spark.datasource.worker import before_grpc

before_grpc()
